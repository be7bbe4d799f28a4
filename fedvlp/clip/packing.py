"""Token sequences side by side: one row each, or many behind one shared prefix in a single packed row.

A sequence is a list of token ids that ends with the end-of-text token. The id `-(l + 1)` stands for the l-th vector of
a learned prompt. Packing is exact for a causal tower: the prefix's hidden states are the same for all sequences, and no
sequence sees another one's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.clip.text_tower import TextTower, causal_mask


def prompt_ids(prompt_length: int) -> list[int]:
    """Returns the ids that stand for a prompt's vectors.

    Example:
        >>> prompt_ids(3)
        [-1, -2, -3]
    """
    return [-(index + 1) for index in range(prompt_length)]


class TokenRows(nn.Module):
    """Rows of tokens with their positions, one attention mask, and the places where features are read.

    Args:
        ids: Token ids of each row; all rows are of one length.
        positions: Position of each token in its own sequence, one list for all rows.
        groups: Sequence that a token belongs to, -1 for a prefix that all share, one list for all rows.
        ends: Indices of the end-of-text tokens in each row.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    ends: Tensor
    slots: Tensor

    def __init__(self, ids: list[list[int]], positions: list[int], groups: list[int], ends: list[list[int]]) -> None:
        super().__init__()
        self.register_buffer("ids", torch.tensor(ids), persistent=False)  # [R, S]
        self.register_buffer("positions", torch.tensor(positions), persistent=False)  # [S]
        self.register_buffer("ends", torch.tensor(ends), persistent=False)  # [R, K]
        self.register_buffer("slots", (self.ids.flatten() < 0).nonzero().flatten(), persistent=False)
        self.register_buffer("mask", causal_mask(torch.tensor(groups)), persistent=False)  # [S, S]

    def encode(
        self,
        tower: TextTower,
        prompts: Float[Tensor, "prompts L D"],
        deeper: Float[Tensor, "prompts J L D"] | None = None,
    ) -> Float[Tensor, "prompts sequences d"]:
        """Returns the joint features of all sequences, not normalised, for each prompt.

        Args:
            tower: The text tower.
            prompts: What stands for the ids below 0.
            deeper: `deeper[:, j]` replaces what stands there between blocks j + 1 and j + 2; None for nothing.
        """
        tokens = (self._embed(tower, prompts) + tower.positions(self.positions)).flatten(0, 1)  # [N * R, S, D]
        levels = () if deeper is None else deeper.unbind(1)
        between = [partial(self._replace, prompts=level) for level in levels]
        if len(self.ends) == 1:
            return tower.project(tower.transform_at(tokens, self.mask, self.ends[0], between))
        hidden = tower.transform(tokens, self.mask, between).view(len(prompts), *self.ids.shape, -1)  # [N, R, S, D]
        rows = torch.arange(len(self.ends), device=self.ends.device)[:, None]
        return tower.project(hidden[:, rows, self.ends].flatten(1, 2))  # [N, R * K, d]

    def _replace(self, hidden: Float[Tensor, "N*R S D"], prompts: Float[Tensor, "N L D"]) -> Float[Tensor, "N*R S D"]:
        """Returns tokens in which the prompts' vectors stand in their places again."""
        rows = hidden.reshape(len(prompts), -1, hidden.shape[-1])  # [N, R * S, D]
        vectors = prompts[:, -self.ids.flatten()[self.slots] - 1].to(hidden.dtype)
        return rows.index_copy(1, self.slots, vectors).view_as(hidden)

    def _embed(self, tower: TextTower, prompts: Tensor) -> Tensor:
        """Returns the rows' embedded tokens with the prompts' vectors in their places, without positions."""
        words = tower.embed(self.ids.clamp(min=0)).flatten(0, 1)  # [R * S, D]
        vectors = torch.cat([prompts, words.to(prompts.dtype).expand(len(prompts), -1, -1)], dim=1)
        places = torch.arange(self.ids.numel(), device=self.ids.device).view_as(self.ids) + prompts.shape[1]
        return vectors[:, torch.where(self.ids < 0, -self.ids - 1, places)]  # [N, R, S, D]


def pack(prefix: Sequence[int], suffixes: Sequence[Sequence[int]], token_budget: int) -> list[TokenRows]:
    """Returns packed rows `[prefix, suffix 1, suffix 2, ...]`, as many as the token budget asks for.

    Args:
        prefix: Token ids that begin every sequence.
        suffixes: The rest of each sequence, through its end-of-text token.
        token_budget: Largest length of a row in tokens; a single suffix that does not fit gets a row of its own.
    """
    chunks: list[list[Sequence[int]]] = [[]]
    room = token_budget - len(prefix)
    for suffix in suffixes:
        if chunks[-1] and sum(map(len, chunks[-1])) + len(suffix) > room:
            chunks.append([])
        chunks[-1].append(suffix)
    return [_pack_row(list(prefix), chunk) for chunk in chunks]


def stack(sequences: Sequence[Sequence[int]], length: int) -> list[TokenRows]:
    """Returns one row for each sequence, padded with zeros to `length` tokens."""
    ids = [[*sequence, *[0] * (length - len(sequence))] for sequence in sequences]
    ends = [[len(sequence) - 1] for sequence in sequences]
    return [TokenRows(ids, list(range(length)), [-1] * length, ends)]


def shared_prefix_length(sequences: Sequence[Sequence[int]]) -> int:
    """Returns how many first tokens all sequences share, leaving at least one token to each.

    Example:
        >>> shared_prefix_length([[7, 5, 1, 9], [7, 5, 2, 9]])
        2
    """
    longest = min(map(len, sequences)) - 1
    return next((at for at in range(longest) if len({sequence[at] for sequence in sequences}) > 1), longest)


def _pack_row(prefix: list[int], suffixes: Sequence[Sequence[int]]) -> TokenRows:
    """Returns one packed row."""
    ids, positions, groups, ends = list(prefix), list(range(len(prefix))), [-1] * len(prefix), []
    for group, suffix in enumerate(suffixes):
        ids.extend(suffix)
        positions.extend(range(len(prefix), len(prefix) + len(suffix)))
        groups.extend([group] * len(suffix))
        ends.append(len(ids) - 1)
    return TokenRows([ids], positions, groups, [ends])
