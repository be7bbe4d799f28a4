"""Image features of `[CLS][patches][prompt]`, with the prompt's tokens learned, in some or all blocks, CLIP frozen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn

from fedvlp.clip.backbone import CLIP
from fedvlp.clip.towers.blocks import Blocks
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class PromptedImages:
    """What the prompted image tower says of a batch.

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

    `prompts[0]` goes in before `ln_pre`, without positions. `prompts[j]` takes the place of the prompt tokens before
    block j + 1; in blocks without prompts of their own the tokens go on as they are.

    Args:
        clip: The frozen CLIP, shared and not copied.

    Raises:
        UserError: If its image tower is not a ViT that is read at its class token.
    """

    def __init__(self, clip: CLIP) -> None:
        super().__init__()
        self.clip = clip
        reason = _unsuited(self._visual)
        if reason:
            raise UserError(
                "Image prompts are learned in CLIP's own vision transformer, but this model's image tower "
                f"{reason}. Choose another --model.clip.name, for example ViT-B-16."
            )

    @property
    def depth(self) -> int:
        """The number of blocks, the largest J."""
        return len(self._blocks)

    def forward(self, images: Float[Tensor, "B 3 V V"], prompts: Float[Tensor, "J L W"]) -> PromptedImages:
        """Returns features of images and prompt tokens, and the scores of the prompt tokens."""
        hidden = self._before_last(images, prompts)
        behind = hidden.shape[1] - prompts.shape[1]
        places = torch.arange(behind, hidden.shape[1], device=hidden.device)
        scores = self._blocks.last_scores(hidden, 0, places)
        features = self._project(self._blocks.run_last(hidden, torch.cat([places.new_zeros(1), places])))
        return PromptedImages(features[:, 0], features[:, 1:], scores)

    def encode(
        self, images: Float[Tensor, "B 3 V V"], prompts: Float[Tensor, "J L W"] | None = None
    ) -> Float[Tensor, "B d"]:
        """Returns `forward(images, prompts).features` alone, for less work; without prompts CLIP's own features."""
        if prompts is None or not prompts.numel():
            return self.clip.encode_image(images)
        hidden = self._before_last(images, prompts)
        return self._project(self._blocks.run_last(hidden, torch.zeros(1, dtype=torch.long, device=hidden.device)))[
            :, 0
        ]

    @property
    def _visual(self) -> Any:
        return self.clip.model.visual

    @property
    def _blocks(self) -> Blocks:
        return Blocks(self._visual.transformer)

    def _before_last(self, images: Tensor, prompts: Tensor) -> Float[Tensor, "B P+L W"]:
        """Returns what goes into the last block."""
        blocks = self._blocks
        blocks.check_depth(len(prompts), "image")
        tokens = self._visual._embeds(images)  # [B, P, W]
        first, *deeper = prompts.to(tokens.dtype)
        between = [partial(_replace, prompt=prompt) for prompt in deeper]
        return blocks.run_before_last(_behind(tokens, self._visual.ln_pre(first)), between)

    def _project(self, hidden: Float[Tensor, "B N W"]) -> Float[Tensor, "B N d"]:
        """Returns joint features, not normalised, of the last block's output at some tokens."""
        normalised: Tensor = self._visual.ln_post(hidden)
        return normalised if self._visual.proj is None else normalised @ self._visual.proj


def _behind(tokens: Float[Tensor, "B P W"], prompt: Float[Tensor, "L W"]) -> Float[Tensor, "B P+L W"]:
    """Returns each image's tokens with the prompt's behind them."""
    return torch.cat([tokens, prompt.to(tokens.dtype).expand(len(tokens), -1, -1)], dim=1)


def _replace(hidden: Float[Tensor, "B P+L W"], prompt: Float[Tensor, "L W"]) -> Float[Tensor, "B P+L W"]:
    """Returns tokens whose last ones are replaced by the prompt's."""
    return _behind(hidden[:, : hidden.shape[1] - len(prompt)], prompt)


def _unsuited(visual: Any) -> str | None:
    """Returns why prompts cannot be learned in this tower, or None if they can."""
    if not isinstance(visual, VisionTransformer):
        return f"is a {type(visual).__name__}"
    if visual.attn_pool is not None:
        return "pools its tokens by attention"
    if visual.pool_type != "tok":
        return f"pools its tokens by '{visual.pool_type}'"
    if not Blocks(visual.transformer).are_plain:
        return "has attention of another kind than CLIP's"
    return None
