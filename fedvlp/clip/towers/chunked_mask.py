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
            the chunk; rows are those tokens of the chunk that ask. The first chunk begins with the prefix itself.
    """

    prefix: int
    masks: tuple[Float[Tensor, "_ _"], ...]

    @property
    def num_asking(self) -> int:
        """The number of tokens that ask."""
        return sum(map(len, self.masks))

    @property
    def length(self) -> int:
        """The number of tokens in the row."""
        return sum(self._lengths)

    def attend(
        self,
        query: Float[Tensor, "sequences asking width"],
        key: Float[Tensor, "sequences length width"],
        value: Float[Tensor, "sequences length width"],
        num_heads: int,
    ) -> Float[Tensor, "sequences asking width"]:
        """Returns what tokens read from those that they see."""
        queries = torch.split(query, [len(mask) for mask in self.masks], dim=1)
        chunks = zip(queries, self._seen(key), self._seen(value), self.masks, strict=True)
        read = [attend(asking, keys, values, num_heads, mask) for asking, keys, values, mask in chunks]
        return read[0] if len(read) == 1 else torch.cat(read, dim=1)

    def at(self, places: Sequence[Int[Tensor, "_"]]) -> ChunkedMask:
        """Returns the mask for some of each chunk's tokens as those that ask; places count from the chunk's start."""
        return ChunkedMask(self.prefix, tuple(mask[place] for mask, place in zip(self.masks, places, strict=True)))

    def to(self, dtype: torch.dtype) -> ChunkedMask:
        """Returns the mask in the type of the tokens."""
        return ChunkedMask(self.prefix, tuple(mask.to(dtype) for mask in self.masks))

    def whole(self) -> Float[Tensor, "length length"]:
        """Returns the mask of all tokens at once, for attention of another kind than CLIP's; all tokens ask."""
        whole = self.masks[0].new_full((self.length, self.length), float("-inf"))
        start = 0
        for index, mask in enumerate(self.masks):
            rows, own = slice(start, start + len(mask)), mask if not index else mask[:, self.prefix :]
            whole[rows, : self.prefix] = mask[:, : self.prefix]
            whole[rows, rows] = own
            start += len(mask)
        return whole

    @property
    def _lengths(self) -> list[int]:
        """The number of tokens in each chunk, the prefix being in the first."""
        first, *others = (mask.shape[1] for mask in self.masks)
        return [first, *(columns - self.prefix for columns in others)]

    def _seen(self, tokens: Tensor) -> Iterator[Tensor]:
        """Yields what each chunk sees of keys or values."""
        first, *others = torch.split(tokens, self._lengths, dim=1)
        yield first
        shared = first[:, : self.prefix]
        for other in others:
            yield torch.cat([shared, other], dim=1)


@dataclass(frozen=True)
class SideBySide:
    """The masks of rows that stand side by side in one, none of which sees another's tokens.

    Attributes:
        rows: Each row's mask.
    """

    rows: tuple[ChunkedMask, ...]

    def attend(
        self,
        query: Float[Tensor, "sequences asking width"],
        key: Float[Tensor, "sequences length width"],
        value: Float[Tensor, "sequences length width"],
        num_heads: int,
    ) -> Float[Tensor, "sequences asking width"]:
        """Returns what tokens read from those that they see."""
        queries = torch.split(query, [row.num_asking for row in self.rows], dim=1)
        keys, values = (torch.split(tokens, [row.length for row in self.rows], dim=1) for tokens in (key, value))
        rows = zip(self.rows, queries, keys, values, strict=True)
        read = [row.attend(asking, own_keys, own_values, num_heads) for row, asking, own_keys, own_values in rows]
        return torch.cat(read, dim=1)

    def whole(self) -> Float[Tensor, "length length"]:
        """Returns the mask of all tokens at once; all tokens ask."""
        total, start = sum(row.length for row in self.rows), 0
        whole = self.rows[0].masks[0].new_full((total, total), float("-inf"))
        for row in self.rows:
            own = slice(start, start + row.length)
            whole[own, own] = row.whole()
            start = own.stop
        return whole


Mask = ChunkedMask | SideBySide
"""Which tokens of a row see which."""


def attend(
    query: Float[Tensor, "sequences asking width"],
    key: Float[Tensor, "sequences length width"],
    value: Float[Tensor, "sequences length width"],
    num_heads: int,
    mask: Float[Tensor, "asking length"] | None = None,
) -> Float[Tensor, "sequences asking width"]:
    """Returns what tokens read from others in all heads."""
    parts = (torch.unflatten(part, -1, (num_heads, -1)).transpose(1, 2) for part in (query, key, value))
    asking, keys, values = parts  # [sequences, heads, tokens, head width]
    return scaled_dot_product_attention(asking, keys, values, attn_mask=mask).transpose(1, 2).flatten(2)
