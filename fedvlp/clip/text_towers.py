"""The text tower of an open_clip model, fed with embedded tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from open_clip.hf_model import HFTextEncoder
from torch import Tensor, nn

from fedvlp.clip.blocks import Between, Blocks, Branch, Mask, SequenceMask, is_standard_block, with_branches
from fedvlp.clip.tokens import TokenLayout

Tokens = Float[Tensor, "sequences length D"]
"""Embedded tokens of some sequences."""

TokenIds = Int[Tensor, "sequences length"]
"""Their numbers in the vocabulary."""


class TextTower(ABC):
    """A text tower of any kind: it embeds tokens, runs them through its blocks, and reads one feature from them.

    It refers to the open_clip module, whose weights it does not copy, so it follows the module to any device and
    precision.

    Args:
        tower: open_clip's module with the parts of a text tower.
        token_layout: Where words stand among the tokens that the model's tokenizer puts out.

    Attributes:
        blocks: The transformer, where it is open_clip's own.
    """

    blocks: Blocks | None = None

    def __init__(self, tower: nn.Module, token_layout: TokenLayout) -> None:
        self._tower: Any = tower
        self.token_layout = token_layout

    @property
    @abstractmethod
    def depth(self) -> int:
        """The number of blocks."""

    @property
    @abstractmethod
    def embedding(self) -> nn.Embedding:
        """The vectors of all tokens that there are."""

    @property
    def width(self) -> int:
        """D, the width of a token."""
        return self.embedding.embedding_dim

    def embed(self, ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape D"]:
        """Returns token embeddings, without positions."""
        embeddings: Tensor = self.embedding(ids)
        return embeddings

    def beside(self, branches: Mapping[int, Branch]) -> TextTower:
        """Returns this tower with branches beside its blocks, refused if it has none: `with_branches`."""
        tower = copy(self)
        tower.blocks = with_branches(self.blocks, branches, "text tower")
        return tower

    def reads_end(self, ids: Sequence[int]) -> bool:
        """Whether a sequence's feature is that of its last token, on which nothing behind it has an effect."""
        return False

    def fill(self, sequences: Sequence[Sequence[int]]) -> list[list[int]]:
        """Returns the token ids of sequences with as much padding as their features depend on, all of one length."""
        return [self.token_layout.fill(ids) for ids in sequences]

    @abstractmethod
    def encode(self, tokens: Tokens, ids: TokenIds, between: Sequence[Between] = ()) -> Float[Tensor, "sequences d"]:
        """Returns the joint features of filled sequences, not normalised.

        Args:
            tokens: Embedded tokens, without positions.
            ids: Their ids, which tell words from padding and from the end of a text; ids below 0 are those of words.
            between: `between[j]` changes the tokens between blocks j + 1 and j + 2.
        """


class OpenCLIPTextTower(TextTower):
    """open_clip's own transformer, causal or not, read at the end of a text, its first or last token, or a class token.

    The tower of a `CLIP`, which has no module for it, is the model itself.
    """

    blocks: Blocks

    def __init__(self, tower: nn.Module, token_layout: TokenLayout) -> None:
        super().__init__(tower, token_layout)
        self.blocks = Blocks(self._tower.transformer)
        self._is_standard = all(map(is_standard_block, self.blocks))
        # open_clip's `CLIP` pools as its `TextTransformer` does, under other names and without a class token.
        self._pool = getattr(tower, "text_pool_type", getattr(tower, "pool_type", ""))
        self._end = getattr(tower, "text_eos_id", getattr(tower, "eos_id", 0))
        self._has_class_token = getattr(tower, "cls_emb", None) is not None
        self._hides_padding = self._has_class_token or getattr(tower, "use_pad_mask", False)

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    @property
    def embedding(self) -> nn.Embedding:
        """The vectors of all tokens that there are."""
        return cast(nn.Embedding, self._tower.token_embedding)

    def positions(self, indices: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape D"]:
        """Returns the positional embeddings at these positions of a sequence."""
        embeddings: Tensor = self._tower.positional_embedding[indices]
        return embeddings

    def reads_end(self, ids: Sequence[int]) -> bool:
        """Whether a sequence's feature is that of its last token, on which nothing behind it has an effect."""
        # Only attention of CLIP's own kind can be computed chunk by chunk.
        if self._tower.attn_mask is None or not self._is_standard or self._common_place is not None:
            return False
        return int(self._places(torch.tensor([ids]))) == len(ids) - 1

    def encode(self, tokens: Tokens, ids: TokenIds, between: Sequence[Between] = ()) -> Float[Tensor, "sequences d"]:
        """Returns the joint features of filled sequences, not normalised; arguments as of `TextTower.encode`."""
        if self._has_class_token:
            class_tokens = self._tower.cls_emb.to(tokens.dtype).expand(tokens.shape[0], 1, -1)
            tokens = torch.cat([tokens, class_tokens], dim=1)
            between = [partial(_change_all_but_last, change) for change in between]
        mask = self._mask(ids, tokens.shape[1])
        tokens = tokens + self._tower.positional_embedding[: tokens.shape[1]]
        if self._common_place is not None and self._is_standard:
            place = torch.full((1,), self._common_place, device=ids.device)
            query_mask = None if mask is None else mask.select_queries(place)
            return self.project(self.transform(tokens, mask, between, place, query_mask)[:, 0])
        hidden = self.transform(tokens, mask, between)
        return self.project(hidden[torch.arange(ids.shape[0], device=ids.device), self._places(ids)])

    def transform(
        self,
        tokens: Tokens,
        mask: Mask | None,
        between: Sequence[Between] = (),
        indices: Int[Tensor, "queries"] | None = None,
        query_mask: Mask | None = None,
    ) -> Tokens | Float[Tensor, "sequences queries D"]:
        """Compute the last block's output for tokens with positions; `between[j]` changes them before block j + 2.

        Given ``indices`` and what the tokens there see, the last block is run only for them.
        """
        hidden = self.blocks.run_before_last(tokens.to(self.blocks.dtype), between, mask)
        return self.blocks.run(self.depth - 1, hidden, mask if indices is None else query_mask, indices)

    def project(self, pooled: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch d"]:
        """Returns joint features, not normalised, from the last block's output at the tokens that are read."""
        normalised: Tensor = self._tower.ln_final(pooled)
        # Some models have a linear layer with a bias, others a bare matrix, a few none.
        projection = self._tower.text_projection
        if projection is None:
            return normalised
        if isinstance(projection, nn.Linear):
            projected: Tensor = projection(normalised)
            return projected
        return normalised @ cast(Tensor, projection)

    @property
    def _common_place(self) -> int | None:
        """Where the features of all texts are read; None where it depends on the text."""
        if self._has_class_token:
            return -1
        return {"first": 0, "last": -1}.get(self._pool)

    def _places(self, ids: TokenIds) -> Int[Tensor, "sequences"]:
        """Where the feature of each text is read."""
        if self._common_place is not None:
            return torch.full((ids.shape[0],), self._common_place, device=ids.device)
        # CLIP's own end-of-text token has the highest number of all.
        return (ids if self._pool == "argmax" else (ids == self._end).int()).argmax(dim=-1)

    def _mask(self, ids: Int[Tensor, "sequences _"], length: int) -> SequenceMask | None:
        """What the tokens of each row see, the class token at its end included; None for everything."""
        causal: Tensor | None = self._tower.attn_mask
        causal = None if causal is None else causal[None, :length, :length]
        if not self._hides_padding:
            mask = causal
        else:
            visible = ids != self._tower.pad_id
            if self._has_class_token:
                class_token = visible.new_ones(ids.shape[0], 1)
                # In CoCa's published weights its place is in front, so that all places are off by one.
                parts = [visible, class_token] if self._tower.correct_cls_mask else [class_token, visible]
                visible = torch.cat(parts, dim=1)
            padding = torch.zeros(visible.shape, device=ids.device).masked_fill(~visible, float("-inf"))[:, None]
            mask = padding if causal is None else causal + padding
        return None if mask is None else SequenceMask(mask.to(self.blocks.compute_dtype))


class HuggingFaceTextTower(TextTower):
    """An encoder of Hugging Face with open_clip's pooling and projection behind it; padding is hidden in it."""

    def __init__(self, tower: HFTextEncoder, token_layout: TokenLayout) -> None:
        super().__init__(tower, token_layout)
        # Blocks may have lists of layers themselves, but theirs is the outermost.
        lists = (module for module in tower.transformer.modules() if isinstance(module, nn.ModuleList))
        self.layers = next(lists)

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return len(self.layers)

    @property
    def embedding(self) -> nn.Embedding:
        """The vectors of all tokens that there are."""
        return cast(nn.Embedding, self._tower.transformer.get_input_embeddings())

    def fill(self, sequences: Sequence[Sequence[int]]) -> list[list[int]]:
        """Returns the token ids of sequences with as much padding as their features depend on, all of one length."""
        filled = super().fill(sequences)
        if self.token_layout.padding != self._tower.config.pad_token_id or self.token_layout.last:
            return filled
        longest = max(map(len, sequences))
        return [ids[:longest] for ids in filled]

    def encode(self, tokens: Tokens, ids: TokenIds, between: Sequence[Between] = ()) -> Float[Tensor, "sequences d"]:
        """Returns the joint features of filled sequences, not normalised; arguments as of `TextTower.encode`."""
        mask = (ids != self._tower.config.pad_token_id).long()
        with ExitStack() as hooks:
            for block, change in zip(self.layers[1:], between, strict=False):
                hooks.enter_context(block.register_forward_pre_hook(partial(_change_first, change)))
            output = self._tower.transformer(inputs_embeds=tokens, attention_mask=mask)
        features: Tensor = self._tower.proj(self._tower.pooler(output, mask))
        return features


def make_text_tower(model: nn.Module, token_layout: TokenLayout) -> TextTower:
    """Make the text tower of an open_clip model, or of only a text tower's module, by its kind."""
    tower = cast(nn.Module, getattr(model, "text", model))
    if isinstance(tower, HFTextEncoder):
        return HuggingFaceTextTower(tower, token_layout)
    return OpenCLIPTextTower(tower, token_layout)


def _change_all_but_last(change: Between, hidden: Tokens) -> Tensor:
    """Returns tokens of which the class token behind the text stays."""
    return torch.cat([change(hidden[:, :-1]), hidden[:, -1:]], dim=1)


def _change_first(change: Between, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (change(inputs[0]), *inputs[1:])
