"""Image features of `[CLS][patches][prompt]`, with the prompt's tokens learned, in some or all blocks, CLIP frozen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.clip.backbone import CLIP
from fedvlp.clip.blocks import check_depth
from fedvlp.clip.image_towers import VisionTransformerTower


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
        hidden = before_last_block(self._tower, images, prompts.unbind())  # [B, P + L, W]
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
        return self._class_features(before_last_block(self._tower, images, prompts.unbind()))

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


def before_last_block(
    tower: VisionTransformerTower, images: Float[Tensor, "B 3 V V"], prompts: Sequence[Float[Tensor, "*each L W"]]
) -> Float[Tensor, "B tokens W"]:
    """Returns what goes into the last block of a tower, from images and the prompts of its first blocks.

    Args:
        tower: The tower.
        images: Pixels, as CLIP's transform puts them out.
        prompts: For each of the first blocks one for all images, or one for each.
    """
    check_depth(len(prompts), len(tower.blocks), "image")
    # The first prompt enters with the image; the others replace its places between blocks.
    first = tower.embed_prompt(prompts[0].to(tower.blocks.dtype))
    tokens = tower.embed(images)  # [B, P, W]
    between = [partial(_with_prompt, tokens.shape[1], prompt) for prompt in prompts[1:]]
    return tower.blocks.run_before_last(_with_prompt(tokens.shape[1], first, tokens), between)


def _with_prompt(
    num_tokens: int, prompt: Float[Tensor, "*each L W"], hidden: Float[Tensor, "B tokens W"]
) -> Float[Tensor, "B longer W"]:
    """The image's own tokens with a prompt behind them."""
    return torch.cat([hidden[:, :num_tokens], prompt.to(hidden.dtype).expand(hidden.shape[0], -1, -1)], dim=1)
