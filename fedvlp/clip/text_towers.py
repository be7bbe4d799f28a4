"""Text towers of open_clip models, which take embedded tokens."""

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

from fedvlp.clip.blocks import Between, Blocks, Branch, Mask, SequenceMask, add_branches, is_standard_block
from fedvlp.clip.tokens import TokenLayout

Tokens = Float[Tensor, "sequences length D"]
"""Embedded tokens of some sequences."""

TokenIds = Int[Tensor, "sequences length"]
"""Indices of tokens in the vocabulary."""


class TextTower(ABC):
    """A text tower of any kind, which embeds tokens, runs its blocks, and reads one feature per sequence.

    It refers to the open_clip module without copying its weights, so it follows the module to any device and precision.

    Args:
        tower: open_clip's module with the parts of a text tower.
        token_layout: Positions of words among the tokenizer's output tokens.

    Attributes:
        width: D, the width of a token.
        depth: The number of blocks.
        blocks: The transformer; None unless it is open_clip's own.
    """

    depth: int
    blocks: Blocks | None = None

    def __init__(self, tower: nn.Module, token_layout: TokenLayout) -> None:
        self._tower: Any = tower
        self.token_layout = token_layout
        self.width = self.embedding.embedding_dim

    @property
    @abstractmethod
    def embedding(self) -> nn.Embedding:
        """The embeddings of the whole vocabulary."""

    def embed(self, ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape D"]:
        """Look up token embeddings, without positions."""
        return self.embedding(ids)

    def add_branches(self, branches: Mapping[int, Branch]) -> TextTower:
        """Copy this tower and add branches in parallel to its blocks, as `add_branches` does."""
        tower = copy(self)
        tower.blocks = add_branches(self.blocks, branches, "text tower")
        return tower

    def reads_end(self, ids: Sequence[int]) -> bool:
        """Whether a sequence's feature is read at its last token and does not depend on later tokens."""
        return False

    def fill(self, sequences: Sequence[Sequence[int]]) -> list[list[int]]:
        """Pad the token ids of sequences to one length, including all padding that affects their features."""
        return [self.token_layout.fill(ids) for ids in sequences]

    @abstractmethod
    def encode(self, tokens: Tokens, ids: TokenIds, between: Sequence[Between] = ()) -> Float[Tensor, "sequences d"]:
        """Compute the joint features of padded sequences, not normalised.

        Args:
            tokens: Embedded tokens, without positions.
            ids: Their ids, which distinguish words, padding and the end of a text; ids below 0 count as words.
            between: `between[j]` changes the tokens between blocks j + 1 and j + 2.
        """


class OpenCLIPTextTower(TextTower):
    """open_clip's own transformer, causal or not, read at the text's end, its first or last token, or a class token.

    A `CLIP` has no separate text module, so the model itself is the tower.
    """

    blocks: Blocks

    def __init__(self, tower: nn.Module, token_layout: TokenLayout) -> None:
        super().__init__(tower, token_layout)
        self.blocks = Blocks(self._tower.transformer)
        self.depth = len(self.blocks)
        self._is_standard = all(map(is_standard_block, self.blocks))
        # open_clip's `CLIP` pools as `TextTransformer` does, but with other option names and no class token.
        self._pool = getattr(tower, "text_pool_type", getattr(tower, "pool_type", ""))
        self._end = getattr(tower, "text_eos_id", getattr(tower, "eos_id", 0))
        self._has_class_token = getattr(tower, "cls_emb", None) is not None
        self._hides_padding = self._has_class_token or getattr(tower, "use_pad_mask", False)

    @property
    def embedding(self) -> nn.Embedding:
        """The embeddings of the whole vocabulary."""
        return cast(nn.Embedding, self._tower.token_embedding)

    def positions(self, indices: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape D"]:
        """Look up positional embeddings."""
        return self._tower.positional_embedding[indices]

    def reads_end(self, ids: Sequence[int]) -> bool:
        """Whether a sequence's feature is read at its last token and does not depend on later tokens."""
        # Only CLIP's own kind of attention can be computed chunk by chunk.
        if self._tower.attn_mask is None or not self._is_standard or self._fixed_position is not None:
            return False
        return int(self._read_positions(torch.tensor([ids]))) == len(ids) - 1

    def encode(self, tokens: Tokens, ids: TokenIds, between: Sequence[Between] = ()) -> Float[Tensor, "sequences d"]:
        """Compute the joint features of padded sequences, not normalised; for arguments see `TextTower.encode`."""
        if self._has_class_token:
            class_tokens = self._tower.cls_emb.to(tokens.dtype).expand(tokens.shape[0], 1, -1)
            tokens = torch.cat([tokens, class_tokens], dim=1)
            between = [partial(_change_all_but_last, change) for change in between]
        mask = self._mask(ids, tokens.shape[1])
        tokens = tokens + self._tower.positional_embedding[: tokens.shape[1]]
        if self._fixed_position is not None and self._is_standard:
            position = torch.full((1,), self._fixed_position, device=ids.device)
            query_mask = None if mask is None else mask.select_queries(position)
            return self.project(self.transform(tokens, mask, between, position, query_mask)[:, 0])
        hidden = self.transform(tokens, mask, between)
        return self.project(hidden[torch.arange(ids.shape[0], device=ids.device), self._read_positions(ids)])

    def transform(
        self,
        tokens: Tokens,
        mask: Mask | None,
        between: Sequence[Between] = (),
        indices: Int[Tensor, "queries"] | None = None,
        query_mask: Mask | None = None,
    ) -> Tokens | Float[Tensor, "sequences queries D"]:
        """Compute the last block's output for tokens with positions; `between[j]` changes them before block j + 2.

        Given ``indices``, the last block is run only for these tokens, under ``query_mask``.
        """
        hidden = self.blocks.run_before_last(tokens.to(self.blocks.dtype), between, mask)
        return self.blocks.run(self.depth - 1, hidden, mask if indices is None else query_mask, indices)

    def project(self, pooled: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch d"]:
        """Compute joint features, not normalised, from the last block's output at the tokens that are read."""
        normalised = self._tower.ln_final(pooled)
        # Some models have a linear layer with a bias, others a bare matrix, a few none.
        projection = self._tower.text_projection
        if projection is None:
            return normalised
        if isinstance(projection, nn.Linear):
            return projection(normalised)
        return normalised @ projection

    @property
    def _fixed_position(self) -> int | None:
        """The position of the token that the features of all texts are read from; None if it depends on the text."""
        if self._has_class_token:
            return -1
        return {"first": 0, "last": -1}.get(self._pool)

    def _read_positions(self, ids: TokenIds) -> Int[Tensor, "sequences"]:
        if self._fixed_position is not None:
            return torch.full((ids.shape[0],), self._fixed_position, device=ids.device)
        # CLIP's own end-of-text token has the highest number of all.
        return (ids if self._pool == "argmax" else (ids == self._end).int()).argmax(dim=-1)

    def _mask(self, ids: Int[Tensor, "sequences _"], length: int) -> SequenceMask | None:
        """Make the mask of each row, including the class token at its end; None if all tokens see each other."""
        causal: Tensor | None = self._tower.attn_mask
        causal = None if causal is None else causal[None, :length, :length]
        if not self._hides_padding:
            mask = causal
        else:
            visible = ids != self._tower.pad_id
            if self._has_class_token:
                class_token = visible.new_ones(ids.shape[0], 1)
                # CoCa's published weights were trained with the class token's mask in front, so all are off by one.
                parts = [visible, class_token] if self._tower.correct_cls_mask else [class_token, visible]
                visible = torch.cat(parts, dim=1)
            padding = torch.zeros(visible.shape, device=ids.device).masked_fill(~visible, float("-inf"))[:, None]
            mask = padding if causal is None else causal + padding
        return None if mask is None else SequenceMask(mask.to(self.blocks.compute_dtype))


class HuggingFaceTextTower(TextTower):
    """A Hugging Face encoder, which masks padding, followed by open_clip's pooling and projection."""

    def __init__(self, tower: HFTextEncoder, token_layout: TokenLayout) -> None:
        super().__init__(tower, token_layout)
        # Blocks may contain lists as well, but the list of blocks is the outermost.
        lists = (module for module in tower.transformer.modules() if isinstance(module, nn.ModuleList))
        self.layers = next(lists)
        self.depth = len(self.layers)

    @property
    def embedding(self) -> nn.Embedding:
        """The embeddings of the whole vocabulary."""
        return cast(nn.Embedding, self._tower.transformer.get_input_embeddings())

    def fill(self, sequences: Sequence[Sequence[int]]) -> list[list[int]]:
        """Pad the token ids of sequences to one length, including all padding that affects their features."""
        filled = super().fill(sequences)
        if self.token_layout.padding != self._tower.config.pad_token_id or self.token_layout.last:
            return filled
        longest = max(map(len, sequences))
        return [ids[:longest] for ids in filled]

    def encode(self, tokens: Tokens, ids: TokenIds, between: Sequence[Between] = ()) -> Float[Tensor, "sequences d"]:
        """Compute the joint features of padded sequences, not normalised; for arguments see `TextTower.encode`."""
        mask = (ids != self._tower.config.pad_token_id).long()
        with ExitStack() as hooks:
            for block, change in zip(self.layers[1:], between, strict=False):
                hooks.enter_context(block.register_forward_pre_hook(partial(_change_first, change)))
            output = self._tower.transformer(inputs_embeds=tokens, attention_mask=mask)
        return self._tower.proj(self._tower.pooler(output, mask))


def make_text_tower(model: nn.Module, token_layout: TokenLayout) -> TextTower:
    """Make the text tower of an open_clip model, or of only a text tower's module, by its kind."""
    tower = cast(nn.Module, getattr(model, "text", model))
    if isinstance(tower, HFTextEncoder):
        return HuggingFaceTextTower(tower, token_layout)
    return OpenCLIPTextTower(tower, token_layout)


def _change_all_but_last(change: Between, hidden: Tokens) -> Tensor:
    return torch.cat([change(hidden[:, :-1]), hidden[:, -1:]], dim=1)


def _change_first(change: Between, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (change(inputs[0]), *inputs[1:])
