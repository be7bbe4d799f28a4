"""Image tokens in the joint space, where they can be compared with texts."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from fedvlp.clip.backbone import CLIP
from fedvlp.clip.towers.image_tower import VisionTransformerTower
from fedvlp.utils.errors import UserError


def project_image_tokens(clip: CLIP, tokens: Float[Tensor, "*batch W"]) -> Float[Tensor, "*batch d"]:
    """Returns Proj(ln_post(token)), joint features of tokens of the last block, not normalised.

    Raises:
        UserError: If the image tower is not a ViT of open_clip.
    """
    if not isinstance(clip.image, VisionTransformerTower):
        raise UserError(
            "Single image tokens have joint features in open_clip's ViT towers only, but this image tower is a "
            f"{clip.image.kind}. Choose another --model.clip.name, for example ViT-B-16."
        )
    return clip.image.project(tokens)
