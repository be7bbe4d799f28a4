"""Rows of token sequences: one row for each sequence, or many sequences as a tree of tokens in a single packed row.

A sequence is a list of token ids that ends with the end-of-text token. The id `-(l + 1)` stands for the l-th vector of
a learned prompt. Packing is exact for a causal tower: sequences that begin alike have the same hidden states there, so
their first tokens are in the row once, and no token sees those of other sequences behind the place where they part.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.clip.blocks import BlockDiagonalMask, ChunkedMask
from fedvlp.clip.text_towers import TextTower


class TokenRows(nn.Module):
    """Rows of tokens with their positions, what they see of each other, and the places where features are read.

    Args:
        ids: Token ids of each row; all rows are of one length.
        positions: Position of each token in its own sequence, one list for all rows.
        ends: Indices of the end-of-text tokens in each row.
        prefix: Number of first tokens, which all others of a row see.
        chunks: For each chunk of tokens behind the prefix, the token that each one follows, counted from the prefix's
            first and without the chunks between; -1 for the first of all. A token sees those it follows, and all that
            these follow; attention is computed chunk by chunk.
    """

    ids: Tensor
    positions: Tensor
    ends: Tensor
    slots: Tensor

    def __init__(
        self, ids: list[list[int]], positions: list[int], ends: list[list[int]], prefix: int, chunks: list[list[int]]
    ) -> None:
        super().__init__()
        self.prefix = prefix
        self.num_chunks = len(chunks)
        self._register("ids", torch.tensor(ids))  # [R, S]
        self._register("positions", torch.tensor(positions))  # [S]
        self._register("ends", torch.tensor(ends))  # [R, K]
        self._register("slots", (self.ids.flatten() < 0).nonzero().flatten())
        start = 0
        for index, chunk in enumerate(chunks):
            mask = causal_mask([*range(-1, prefix - 1), *chunk])
            # Attention within a chunk is S x S, so chunks bound its cost; each sees the prefix and itself.
            # The prefix's own rows are in the first chunk alone.
            mask = mask[prefix if index else 0 :]
            inside = [end - start for end in ends[0] if start <= end < start + len(mask)]
            self._register(f"mask_{index}", mask)
            self._register(f"ends_{index}", torch.tensor(inside, dtype=torch.long))
            start += len(mask)

    @property
    def mask(self) -> ChunkedMask:
        """What the tokens of a row see."""
        return ChunkedMask(self.prefix, self._of_chunks("mask"))

    def encode_words(self, tower: TextTower) -> Float[Tensor, "sequences d"]:
        """Returns the joint features of sequences without a prompt, not normalised."""
        no_prompt = tower.embed(torch.empty(1, 0, dtype=torch.long, device=self.ids.device))  # [1, L = 0, D]
        return self.encode(tower, no_prompt)[0]

    def encode(
        self,
        tower: TextTower,
        prompts: Float[Tensor, "prompts L D"],
        deeper: Float[Tensor, "prompts J L D"] | None = None,
    ) -> Float[Tensor, "prompts sequences d"]:
        """Returns the joint features of all sequences, not normalised, for each prompt.

        Args:
            tower: The text tower.
            prompts: What replaces the ids below 0.
            deeper: `deeper[:, j]` replaces them between blocks j + 1 and j + 2; None for nothing.
        """
        # All prompts of a batch go through the tower together, as further sequences.
        tokens = self.embed(tower, prompts).flatten(0, 1)  # [N * R, S, D]
        levels = () if deeper is None else deeper.unbind(1)
        between = [partial(self._replace, prompts=level) for level in levels]
        mask = self.mask.to(tower.blocks.compute_dtype)
        # One packed row: the last block is run for the end-of-text tokens alone, which are all that is read.
        if len(self.ends) == 1:
            hidden = tower.transform_at(tokens, mask, self.ends[0], self.at_ends(mask), between)
            return tower.project(hidden)  # [N, K, d]
        hidden = tower.transform(tokens, mask, between).view(prompts.shape[0], *self.ids.shape, -1)  # [N, R, S, D]
        # Several rows end at different places, so the last block is run for all tokens.
        rows = torch.arange(len(self.ends), device=self.ends.device)[:, None]
        return tower.project(hidden[:, rows, self.ends].flatten(1, 2))  # [N, R * K, d]

    def at_ends(self, mask: ChunkedMask) -> ChunkedMask:
        """Returns what the end-of-text tokens of a single row see."""
        return mask.select_queries(self._of_chunks("ends"))

    def embed(self, tower: TextTower, prompts: Float[Tensor, "prompts L D"]) -> Float[Tensor, "prompts rows length D"]:
        """Returns the rows' embedded tokens with the prompts' vectors in their places, and with positions."""
        # Places of the prompt have ids below 0: the embeddings that are looked up for them are never used.
        words = tower.embed(self.ids.clamp(min=0)).flatten(0, 1)  # [R * S, D]
        vectors = torch.cat([prompts, words.to(prompts.dtype).expand(prompts.shape[0], -1, -1)], dim=1)
        places = torch.arange(self.ids.numel(), device=self.ids.device).view_as(self.ids) + prompts.shape[1]
        tokens = vectors[:, torch.where(self.ids < 0, -self.ids - 1, places)]  # [N, R, S, D]
        return tokens + tower.positions(self.positions)

    def _of_chunks(self, name: str) -> tuple[Tensor, ...]:
        return tuple(cast(Tensor, getattr(self, f"{name}_{index}")) for index in range(self.num_chunks))

    def _register(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor, persistent=False)

    def _replace(
        self, hidden: Float[Tensor, "sequences length D"], prompts: Float[Tensor, "prompts L D"]
    ) -> Float[Tensor, "sequences length D"]:
        """Returns the tokens with the prompts' vectors in their places."""
        # Not in place: autograd may need the block's own output.
        rows = hidden.reshape(prompts.shape[0], -1, hidden.shape[-1])  # [N, R * S, D]
        vectors = prompts[:, -self.ids.flatten()[self.slots] - 1].to(hidden.dtype)
        return rows.index_copy(1, self.slots, vectors).view_as(hidden)


def encode_side_by_side(
    tower: TextTower, rows: Sequence[TokenRows], prompts: Sequence[Float[Tensor, "L D"]]
) -> list[Float[Tensor, "sequences d"]]:
    """Returns the joint features of packed rows, each under its own prompt, not normalised, by one call of the tower.

    Products with few rows of tokens are slow, so this is for small packs.
    """
    tokens = torch.cat([row.embed(tower, prompt[None])[0] for row, prompt in zip(rows, prompts, strict=True)], dim=1)
    starts = accumulate((row.ids.shape[1] for row in rows[:-1]), initial=0)
    # The rows are joined to one, so their places shift by the lengths of those before.
    ends = torch.cat([row.ends[0] + start for row, start in zip(rows, starts, strict=True)])
    masks = tuple(row.mask.to(tower.blocks.compute_dtype) for row in rows)
    end_masks = tuple(row.at_ends(mask) for row, mask in zip(rows, masks, strict=True))
    hidden = tower.transform_at(tokens, BlockDiagonalMask(masks), ends, BlockDiagonalMask(end_masks))
    return list(torch.split(tower.project(hidden)[0], [row.ends.shape[1] for row in rows]))


def pack(sequences: Sequence[Sequence[int]], token_budget: int = 96) -> TokenRows:
    """Returns one packed row `[what all begin with, rest 1, rest 2, ...]`, whose attention is computed in chunks.

    Within a chunk the rest of a sequence leaves out the first tokens that it shares with the sequence before it.

    Args:
        sequences: Token ids of each sequence, through its end-of-text token.
        token_budget: Largest length of a chunk with the prefix, in tokens; a rest that does not fit gets its own.
    """
    prefix = shared_prefix_length(sequences)
    chunks: list[list[int]] = [[]]
    ids = list(sequences[0][:prefix])
    positions = list(range(prefix))
    ends = []
    path: list[int] = []  # places of the tokens of the sequence before, in its chunk
    before: Sequence[int] = []
    for sequence in sequences:
        shared = shared_prefix_length([before, sequence]) if before else prefix
        # A new chunk sees the prefix only, so what the sequence shares with the one before is repeated in it.
        if chunks[-1] and prefix + len(chunks[-1]) + len(sequence) - shared > token_budget:
            chunks.append([])
            shared = prefix
        # The tokens that this sequence follows: the prefix, then what it shares with the one before.
        path = [*range(prefix), *path[prefix:shared]]
        for _ in range(shared, len(sequence)):
            chunks[-1].append(path[-1] if path else -1)
            path.append(prefix + len(chunks[-1]) - 1)
        ids.extend(sequence[shared:])
        positions.extend(range(shared, len(sequence)))
        ends.append(len(ids) - 1)
        before = sequence
    return TokenRows([ids], positions, [ends], prefix, chunks)


def stack(sequences: Sequence[Sequence[int]], length: int) -> TokenRows:
    """Returns one row for each sequence, padded with zeros to `length` tokens."""
    # What is behind a sequence's end is never seen: the tower is causal.
    ids = [[*sequence, *[0] * (length - len(sequence))] for sequence in sequences]
    ends = [[len(sequence) - 1] for sequence in sequences]
    return TokenRows(ids, list(range(length)), ends, 0, [list(range(-1, length - 1))])


def shared_prefix_length(sequences: Sequence[Sequence[int]]) -> int:
    """Returns how many first tokens all sequences share, leaving at least one token to each.

    Example:
        >>> shared_prefix_length([[7, 5, 1, 9], [7, 5, 2, 9]])
        2
    """
    length = 0
    for ids in zip(*sequences, strict=False):  # as far as the shortest goes
        if len(set(ids)) > 1:
            return length
        length += 1
    # All tokens of the shortest are shared but its last one, as features are read there.
    return length - 1


def causal_mask(parents: Sequence[int]) -> Float[Tensor, "length length"]:
    """Returns the additive mask under which a token sees itself, the one it follows, and all that this one sees.

    Args:
        parents: The place of the token that each one follows, always an earlier one; -1 for none.

    Example:
        >>> causal_mask([-1, 0, 0])
        tensor([[0., -inf, -inf],
                [0., 0., -inf],
                [0., -inf, 0.]])
    """
    visible = torch.eye(len(parents), dtype=torch.bool)
    for place, parent in enumerate(parents):
        if parent >= 0:
            # Parents come first, so all that the parent sees is known by now.
            visible[place] |= visible[parent]
    return torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))
