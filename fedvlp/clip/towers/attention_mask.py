"""Which tokens of a row see which, chunk by chunk, and attention that reads no more than that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class ChunkedMask:
    """A row of chunks behind one prefix: a token sees the prefix and its own chunk, as far as an additive mask allows.

    A row of S tokens in one chunk has a mask of S x S, which attention fills whatever is hidden in it. In chunks of T
    tokens behind a prefix of P it fills S x (P + T).

    Attributes:
        prefix: P, the number of first tokens, which all chunks see.
        masks: For each chunk 0 where a token (row) sees another (column), -inf elsewhere. Columns are the prefix, then
            the chunk; rows are those tokens of the chunk whose queries are taken. The first chunk begins with the
            prefix itself.
    """

    prefix: int
    masks: tuple[Float[Tensor, "_ _"], ...]

    @property
    def num_queries(self) -> int:
        """The number of tokens whose queries are taken."""
        return sum(map(len, self.masks))

    @property
    def length(self) -> int:
        """The number of tokens in the row."""
        return sum(self._lengths)

    def attend(
        self,
        query: Float[Tensor, "sequences queries width"],
        key: Float[Tensor, "sequences length width"],
        value: Float[Tensor, "sequences length width"],
        num_heads: int,
    ) -> Float[Tensor, "sequences queries width"]:
        """Returns what tokens read from those that they see."""
        queries = torch.split(query, [len(mask) for mask in self.masks], dim=1)
        chunks = zip(queries, self._seen(key), self._seen(value), self.masks, strict=True)
        # Each chunk is attended separately: no score is computed that the mask would hide.
        read = [attend(q, k, v, num_heads, mask) for q, k, v, mask in chunks]
        return read[0] if len(read) == 1 else torch.cat(read, dim=1)

    def select_queries(self, indices: Sequence[Int[Tensor, "_"]]) -> ChunkedMask:
        """Returns the mask for the queries of some of each chunk's tokens; indices count from the chunk's start."""
        return ChunkedMask(self.prefix, tuple(mask[chosen] for mask, chosen in zip(self.masks, indices, strict=True)))

    def to(self, dtype: torch.dtype) -> ChunkedMask:
        """Returns the mask in the type of the tokens."""
        return ChunkedMask(self.prefix, tuple(mask.to(dtype) for mask in self.masks))

    def dense(self) -> Float[Tensor, "length length"]:
        """Returns the mask of all tokens at once, for attention of another kind than CLIP's; none may be left out."""
        dense = self.masks[0].new_full((self.length, self.length), float("-inf"))
        start = 0
        for index, mask in enumerate(self.masks):
            rows = slice(start, start + len(mask))
            dense[rows, : self.prefix] = mask[:, : self.prefix]
            # The first chunk contains the prefix, whose columns are then written twice with the same values.
            dense[rows, rows] = mask[:, self.prefix :] if index else mask
            start = rows.stop
        return dense

    @property
    def _lengths(self) -> list[int]:
        """The number of tokens in each chunk, the prefix being in the first."""
        lengths = [mask.shape[1] - self.prefix for mask in self.masks]
        # The first chunk's mask begins with the prefix itself.
        lengths[0] += self.prefix
        return lengths

    def _seen(self, tokens: Tensor) -> Iterator[Tensor]:
        """Yields what each chunk sees of keys or values."""
        chunks = torch.split(tokens, self._lengths, dim=1)
        yield chunks[0]
        # Later chunks get the prefix's keys and values, but not its queries, which the first chunk answers.
        shared = chunks[0][:, : self.prefix]
        for chunk in chunks[1:]:
            yield torch.cat([shared, chunk], dim=1)


@dataclass(frozen=True)
class BlockDiagonalMask:
    """The masks of rows that are joined to one, none of which sees another's tokens.

    Attributes:
        rows: Each row's mask.
    """

    rows: tuple[ChunkedMask, ...]

    def attend(
        self,
        query: Float[Tensor, "sequences queries width"],
        key: Float[Tensor, "sequences length width"],
        value: Float[Tensor, "sequences length width"],
        num_heads: int,
    ) -> Float[Tensor, "sequences queries width"]:
        """Returns what tokens read from those that they see."""
        lengths = [row.length for row in self.rows]
        queries = torch.split(query, [row.num_queries for row in self.rows], dim=1)
        keys = torch.split(key, lengths, dim=1)
        values = torch.split(value, lengths, dim=1)
        # Rows see nothing of each other: a joint mask would only add scores of -inf.
        rows = zip(self.rows, queries, keys, values, strict=True)
        return torch.cat([row.attend(q, k, v, num_heads) for row, q, k, v in rows], dim=1)

    def dense(self) -> Float[Tensor, "length length"]:
        """Returns the mask of all tokens at once; none may be left out."""
        total = sum(row.length for row in self.rows)
        dense = self.rows[0].masks[0].new_full((total, total), float("-inf"))
        start = 0
        for row in self.rows:
            own = slice(start, start + row.length)
            dense[own, own] = row.dense()
            start = own.stop
        return dense


Mask = ChunkedMask | BlockDiagonalMask
"""Which tokens of a row see which."""


def attend(
    query: Float[Tensor, "sequences queries width"],
    key: Float[Tensor, "sequences length width"],
    value: Float[Tensor, "sequences length width"],
    num_heads: int,
    mask: Float[Tensor, "queries length"] | None = None,
) -> Float[Tensor, "sequences queries width"]:
    """Returns what tokens read from others in all heads."""
    query = _split_heads(query, num_heads)
    key = _split_heads(key, num_heads)
    value = _split_heads(value, num_heads)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)


def _split_heads(tokens: Tensor, num_heads: int) -> Float[Tensor, "sequences heads tokens width"]:
    return torch.unflatten(tokens, -1, (num_heads, -1)).transpose(1, 2)
