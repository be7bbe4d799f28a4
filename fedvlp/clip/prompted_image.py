"""Image features of `[CLS][patches][prompt]`, with the prompt's tokens learned, in some or all blocks, CLIP frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.clip.backbone import CLIP
from fedvlp.clip.towers import VisionTransformerTower
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class PromptedImages:
    """What the prompted image tower makes of a batch.

    Attributes:
        features: Joint features of the images, from CLS, not normalised.
        prompt_features: Joint features of each prompt token's last output, not normalised.
        scores: Last block's CLS query against each prompt token's key, per-head dot / sqrt(head width), averaged over
            heads, before the softmax.
    """

    features: Float[Tensor, "B d"]
    prompt_features: Float[Tensor, "B L d"]
    scores: Float[Tensor, "B L"]


class PromptedImageEncoder(nn.Module):
    """The image tower with learned tokens behind an image's own, differentiable in these tokens alone.

    `prompts[0]` goes in before `ln_pre`, without positions. `prompts[j]` replaces the prompt tokens before block j + 1;
    blocks without prompts of their own take the tokens as they come.

    Args:
        clip: The frozen CLIP, shared and not copied.

    Raises:
        UserError: If its image tower is not a ViT that is read at its class token.
    """

    def __init__(self, clip: CLIP) -> None:
        super().__init__()
        self.clip = clip
        clip.image.for_prompts()

    @property
    def depth(self) -> int:
        """The number of blocks, the largest J."""
        return len(self._tower.blocks)

    def forward(self, images: Float[Tensor, "B 3 V V"], prompts: Float[Tensor, "J L W"]) -> PromptedImages:
        """Returns features of images and prompt tokens, and the scores of the prompt tokens.

        Args:
            images: Pixels, as CLIP's transform puts them out.
            prompts: L vectors for each of the first J blocks.

        Raises:
            UserError: If there are fewer than J blocks.
        """
        blocks = self._tower.blocks
        hidden = self._before_last(images, prompts)  # [B, P + L, W]
        num_tokens = hidden.shape[1]
        of_prompt = torch.arange(num_tokens - prompts.shape[1], num_tokens, device=hidden.device)
        # Fused attention returns no scores, so those few are computed beside it.
        scores = blocks.last_scores(hidden, 0, of_prompt)
        indices = torch.cat([of_prompt.new_zeros(1), of_prompt])
        features = self._tower.project(blocks.run_last(hidden, indices))  # [B, 1 + L, d]
        return PromptedImages(features[:, 0], features[:, 1:], scores)

    def encode(
        self, images: Float[Tensor, "B 3 V V"], prompts: Float[Tensor, "J L W"] | None = None
    ) -> Float[Tensor, "B d"]:
        """Returns `forward(images, prompts).features` alone, for less work; without prompts CLIP's own features."""
        if prompts is None or not prompts.numel():
            return self.clip.encode_image(images)
        return self._class_features(self._before_last(images, prompts))

    def encode_each(
        self, images: Float[Tensor, "B 3 V V"], make: Callable[[Float[Tensor, "B patches W"]], Float[Tensor, "B L W"]]
    ) -> Float[Tensor, "B d"]:
        """Returns the joint features of images that have prompts of their own in the first block, not normalised.

        Args:
            images: Pixels, as CLIP's transform puts them out.
            make: From the patches, as they go into the first block, to the prompts.
        """
        tower = self._tower
        tokens = tower.embed(images)
        prompts = tower.embed_prompt(make(tokens[:, 1:]).to(tokens.dtype))
        return self._class_features(tower.blocks.run_before_last(torch.cat([tokens, prompts], dim=1)))

    @property
    def _tower(self) -> VisionTransformerTower:
        return self.clip.image.for_prompts()

    def _class_features(self, hidden: Float[Tensor, "B tokens W"]) -> Float[Tensor, "B d"]:
        """Joint features of the class token, from what goes into the last block."""
        class_token = torch.zeros(1, dtype=torch.long, device=hidden.device)
        return self._tower.project(self._tower.blocks.run_last(hidden, class_token))[:, 0]

    def _before_last(
        self, images: Float[Tensor, "B 3 V V"], prompts: Float[Tensor, "J L W"]
    ) -> Float[Tensor, "B tokens W"]:
        """What goes into the last block."""
        tower = self._tower
        tower.blocks.check_depth(len(prompts), "image")
        tokens = tower.embed(images)  # [B, P, W]
        # `prompts[0]` enters with the image; the others replace the prompt's places between blocks.
        first, *deeper = prompts.to(tokens.dtype)
        between = [partial(_with_prompt, tokens.shape[1], prompt) for prompt in deeper]
        return tower.blocks.run_before_last(_with_prompt(tokens.shape[1], tower.embed_prompt(first), tokens), between)


def _with_prompt(
    num_tokens: int, prompt: Float[Tensor, "L W"], hidden: Float[Tensor, "B tokens W"]
) -> Float[Tensor, "B longer W"]:
    """The image's own tokens with a prompt behind them."""
    return torch.cat([hidden[:, :num_tokens], prompt.to(hidden.dtype).expand(hidden.shape[0], -1, -1)], dim=1)


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
