"""Image tokens in the joint space, where they can be compared with texts."""

from __future__ import annotations

from typing import cast

from jaxtyping import Float
from open_clip.transformer import VisionTransformer
from torch import Tensor

from fedvlp.clip.backbone import CLIP
from fedvlp.utils.errors import UserError


def project_image_tokens(clip: CLIP, tokens: Float[Tensor, "*batch W"]) -> Float[Tensor, "*batch d"]:
    """Returns Proj(ln_post(token)), joint features of tokens of the last block, not normalised.

    Raises:
        UserError: If the image tower is not a ViT of open_clip.
    """
    visual = clip.model.visual
    if not isinstance(visual, VisionTransformer):
        raise UserError(
            "Single image tokens have joint features in open_clip's ViT towers only, but this image tower is a "
            f"{type(visual).__name__}. Choose another --model.clip.name, for example ViT-B-16."
        )
    normalised = cast(Tensor, visual.ln_post(tokens))
    return normalised if visual.proj is None else normalised @ visual.proj
