"""CLIP's towers with low-rank updates of their attention's query, key and value maps; CLIP itself stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from fedvlp.clip import CLIP
from fedvlp.clip.text.packing import pack
from fedvlp.clip.text.prompt_cache import PromptFeatureCache
from fedvlp.clip.text.zero_shot import SINGLE_TEMPLATE, clean_class_names
from fedvlp.clip.towers.blocks import Blocks, is_standard_block
from fedvlp.utils.errors import UserError


class LowRankUpdates(nn.Module):
    """Updates s B A of the query, key and value maps of each block of a tower, zero at first.

    Args:
        blocks: J, the number of blocks.
        width: W, of a token.
        rank: r; without any the updates are zero.
        scale: s.
    """

    def __init__(self, blocks: int, width: int, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        bound = width**-0.5  # as of nn.Linear
        learns = rank > 0
        self.down = nn.Parameter(torch.empty(blocks, 3, rank, width).uniform_(-bound, bound), requires_grad=learns)  # A
        self.up = nn.Parameter(torch.zeros(blocks, 3, width, rank), requires_grad=learns)  # B

    def forward(self) -> Float[Tensor, "J rows W"]:
        """Returns each block's update of its three maps, one below the other, so that rows are 3 W."""
        return self.scale * (self.up @ self.down).flatten(1, 2)


class AdaptedCLIP(nn.Module):
    """Image and text features under updated maps; has no parameters of its own.

    The maps' weights are replaced for the time of a call (``torch.func.functional_call``).

    Args:
        clip: The frozen CLIP, shared and not copied.
        class_names: The classes, in the order of the labels, read in "a photo of a {}.".

    Raises:
        UserError: If a tower is no transformer of CLIP's own kind.
    """

    def __init__(self, clip: CLIP, class_names: list[str]) -> None:
        super().__init__()
        self.clip = clip
        texts = [SINGLE_TEMPLATE.replace("{}", name) for name in clean_class_names(class_names)]
        self.rows = pack(clip.tokenize(texts), token_budget=96)
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        self.names = {}
        for kind, blocks in {"text": clip.text.blocks, "image": clip.image.blocks}.items():
            self.names[kind] = [names[id(weight)] for weight in _attention_weights(kind, blocks)]
        self._cache = PromptFeatureCache()

    def text_features(self, updates: LowRankUpdates) -> Float[Tensor, "C d"]:
        """Returns w_c, not normalised; those under updates without a gradient only when these have changed."""
        return self._cache("", lambda *_: self._call("text", updates, self._encode_texts), updates.down, updates.up)

    def image_features(self, images: Float[Tensor, "B 3 V V"], updates: LowRankUpdates) -> Float[Tensor, "B d"]:
        """Returns f(x), not normalised."""
        return self._call("image", updates, self.clip.encode_image, images)

    def forward(self, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Returns what a function returns, which may read CLIP's weights."""
        return function(*arguments)

    def _call(self, kind: str, updates: LowRankUpdates, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Returns what a function returns under the updates of one tower."""
        weights = {}
        for name, update in zip(self.names[kind], updates(), strict=True):
            frozen = self.get_parameter(name)
            weights[name] = (frozen + update).to(frozen.dtype)
        result: Tensor = functional_call(self, weights, (function, *arguments), tie_weights=False)
        return result

    def _encode_texts(self) -> Float[Tensor, "C d"]:
        no_prompt = self.clip.text.embed(torch.empty(1, 0, dtype=torch.long, device=self.rows.ids.device))
        return self.rows.encode(self.clip.text, no_prompt).squeeze(0)


def _attention_weights(kind: str, blocks: Blocks | None) -> list[Tensor]:
    """Returns each block's query, key and value maps, in one tensor.

    Raises:
        UserError: If a block is not CLIP's own, or there is none.
    """
    if blocks is None or not all(map(is_standard_block, blocks)):
        raise UserError(
            f"LoRA updates the attention of CLIP's own transformer blocks, but this model's {kind} tower has others. "
            "Choose another --model.clip.name, for example ViT-B-16."
        )
    attentions: list[Any] = [block.attn for block in blocks]
    return [attention.in_proj_weight for attention in attentions]
