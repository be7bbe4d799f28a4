"""Prompted towers as in common prompt learning code: full sequences through open_clip's own blocks, no cache."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from fedvlp.clip import CLIP, clean_class_name


class ReferenceText:
    """Text features of all classes under a prompt, with one sequence of the full context length per class.

    Args:
        clip: The frozen CLIP.
        class_names: The classes.
        prompt_length: Number of learned vectors of the prompt, which replace as many placeholders.
        cut: Whether sequences end with the longest class's name.
    """

    def __init__(self, clip: CLIP, class_names: Sequence[str], prompt_length: int, cut: bool = False) -> None:
        model: Any = clip.model
        self._model = model
        placeholders = "X " * prompt_length
        ids = clip.tokenizer([f"{placeholders}{clean_class_name(name)}." for name in class_names])
        ids = ids.to(model.attn_mask.device)
        self._ends = ids.argmax(dim=-1)
        self.length = int(self._ends.max()) + 1 if cut else ids.shape[1]
        self._ids: Tensor = ids[:, : self.length]
        self._mask: Tensor = model.attn_mask[: self.length, : self.length]

    def __len__(self) -> int:
        """Count the classes."""
        return len(self._ids)

    def first(self, count: int) -> ReferenceText:
        """Make the encoder of the first classes, with sequences of the same length."""
        few = copy(self)
        few._ids = self._ids[:count]
        few._ends = self._ends[:count]
        return few

    def __call__(
        self, prompt: Float[Tensor, "L D"], deeper: Float[Tensor, "J L D"] | None = None
    ) -> Float[Tensor, "C d"]:
        """Compute features without normalisation; `deeper[j]` replaces the prompt before block j + 2."""
        model = self._model
        hidden = self._put(model.token_embedding(self._ids), prompt) + model.positional_embedding[: self.length]
        for index, block in enumerate(model.transformer.resblocks):
            hidden = block(hidden, attn_mask=self._mask)
            if deeper is not None and index < len(deeper):
                hidden = self._put(hidden, deeper[index])
        rows = torch.arange(len(hidden), device=hidden.device)
        features: Tensor = model.ln_final(hidden)[rows, self._ends] @ model.text_projection
        return features

    def _put(self, tokens: Float[Tensor, "C S D"], prompt: Float[Tensor, "L D"]) -> Float[Tensor, "C S D"]:
        """Insert the prompt after the first token."""
        return torch.cat([tokens[:, :1], prompt.expand(len(tokens), -1, -1), tokens[:, 1 + len(prompt) :]], dim=1)


class PromptedImages(NamedTuple):
    """Outputs of the image tower for images with prompts.

    Attributes:
        features: Joint features of the images, not normalised.
        tokens: Joint features of the prompt tokens, not normalised.
        scores: Products of the class token's query and the prompt tokens' keys in the last block, averaged over heads.
    """

    features: Float[Tensor, "B d"]
    tokens: Float[Tensor, "B L d"]
    scores: Float[Tensor, "B L"]


def reference_images(clip: CLIP, images: Float[Tensor, "B 3 V V"], prompts: Float[Tensor, "J L W"]) -> PromptedImages:
    """Compute the features of images and prompt tokens, and the attention scores of the prompts.

    Args:
        clip: The frozen CLIP.
        images: Pixels.
        prompts: Tokens behind the image's own, for the first J blocks.
    """
    visual: Any = clip.model.visual
    length = prompts.shape[1]
    tokens = visual._embeds(images)
    hidden = before = torch.cat([tokens, visual.ln_pre(prompts[0]).expand(len(tokens), -1, -1)], dim=1)
    for index, block in enumerate(visual.transformer.resblocks):
        if 0 < index < len(prompts):
            hidden = torch.cat([hidden[:, :-length], prompts[index].expand(len(hidden), -1, -1)], dim=1)
        before = hidden
        hidden = block(hidden)
    joint = visual.ln_post(hidden) @ visual.proj
    scores = _scores(visual.transformer.resblocks[-1], before, length)
    return PromptedImages(joint[:, 0], joint[:, -length:], scores)


def _scores(block: Any, hidden: Float[Tensor, "B N W"], length: int) -> Float[Tensor, "B L"]:
    """Compute a block's attention scores from the first token to the last tokens, averaged over heads."""
    attention = block.attn
    normalised = block.ln_1(hidden[:, [0, *range(-length, 0)]])
    projected = linear(normalised, attention.in_proj_weight, attention.in_proj_bias)
    query, key = projected.chunk(3, dim=-1)[:2]
    products = (query[:, :1] * key[:, 1:]).sum(dim=-1)
    return products / float(attention.num_heads * attention.head_dim**0.5)
