"""Rows of token sequences: one row for each sequence, or many sequences as a tree of tokens in a single packed row.

A sequence is a list of token ids from the first start token through the last end token. The id `-(l + 1)` represents
vector l of a learned prompt, counted from 0. Packing is exact for a causal tower that is read at its end-of-text token.
Sequences with the same first tokens have the same hidden states there, so the row contains these tokens once. After
the sequences diverge, no token sees another sequence's tokens. Other kinds of towers get a padded row per sequence.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.clip.blocks import Between, BlockDiagonalMask, ChunkedMask, check_depth
from fedvlp.clip.text_towers import OpenCLIPTextTower, TextTower, Tokens

DEVICE_BUDGET = 512
"""Largest length of prefix and chunk on a GPU, in tokens."""


class TokenRows(nn.Module, ABC):
    """Rows of tokens, given by ``ids``, with slots for a prompt's vectors. All rows have the same length."""

    ids: Tensor
    slots: Tensor

    def __init__(self, ids: list[list[int]]) -> None:
        super().__init__()
        self._register("ids", torch.tensor(ids))  # [R, S]
        self._register("slots", (self.ids.flatten() < 0).nonzero().flatten())

    def encode_words(self, tower: TextTower) -> Float[Tensor, "sequences d"]:
        """Compute the joint features of sequences without a prompt, not normalised."""
        no_prompt = tower.embed(torch.empty(1, 0, dtype=torch.long, device=self.ids.device))  # [1, L = 0, D]
        return self.encode(tower, no_prompt)[0]

    def encode(
        self,
        tower: TextTower,
        prompts: Float[Tensor, "prompts L D"],
        deeper: Float[Tensor, "prompts J L D"] | None = None,
    ) -> Float[Tensor, "prompts sequences d"]:
        """Compute the joint features of all sequences, not normalised, for each prompt.

        Raises UserError if there are more prompts than blocks.

        Args:
            tower: The text tower.
            prompts: Vectors that replace the ids below 0.
            deeper: `deeper[:, j]` replaces them between blocks j + 1 and j + 2; None replaces nothing.
        """
        levels = () if deeper is None else deeper.unbind(1)
        # A prompt in the first block and one for each level.
        check_depth(1 + len(levels), tower.depth, "text")
        # The tower runs all prompts of a batch together, as additional sequences.
        tokens = self.embed(tower, prompts).flatten(0, 1)  # [N * R, S, D]
        features = self._run(tower, tokens, [partial(self._replace, prompts=level) for level in levels])
        return features.view(prompts.shape[0], -1, features.shape[-1])

    def embed(self, tower: TextTower, prompts: Float[Tensor, "prompts L D"]) -> Float[Tensor, "prompts rows length D"]:
        """Embed the rows' tokens and insert the prompts' vectors into their slots."""
        # The slots have ids below 0, and the embeddings that are looked up for them are never used.
        words = tower.embed(self.ids.clamp(min=0)).flatten(0, 1)  # [R * S, D]
        vectors = torch.cat([prompts, words.to(prompts.dtype).expand(prompts.shape[0], -1, -1)], dim=1)
        word_rows = torch.arange(self.ids.numel(), device=self.ids.device).view_as(self.ids) + prompts.shape[1]
        return vectors[:, torch.where(self.ids < 0, -self.ids - 1, word_rows)]  # [N, R, S, D]

    @abstractmethod
    def _run(self, tower: TextTower, tokens: Tokens, between: Sequence[Between]) -> Float[Tensor, "_ d"]:
        """Compute the joint features of all sequences, not normalised, ordered by prompt, then by sequence."""

    def _replace(self, hidden: Tokens, prompts: Float[Tensor, "prompts L D"]) -> Tokens:
        # Not in place: autograd may need the block's own output.
        rows = hidden.reshape(prompts.shape[0], -1, hidden.shape[-1])  # [N, R * S, D]
        vectors = prompts[:, -self.ids.flatten()[self.slots] - 1].to(hidden.dtype)
        return rows.index_copy(1, self.slots, vectors).view_as(hidden)

    def _register(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor, persistent=False)


class FilledRows(TokenRows):
    """One padded row for each sequence, for towers where tokens see later tokens or padding."""

    def _run(self, tower: TextTower, tokens: Tokens, between: Sequence[Between]) -> Float[Tensor, "sequences d"]:
        # Shapes rather than `len`, which would fix the batch size of an exported graph.
        return tower.encode(tokens, self.ids.repeat(tokens.shape[0] // self.ids.shape[0], 1), between)


class CausalRows(TokenRows):
    """Rows for a causal tower, with token positions, masks, and the indices of end-of-text tokens.

    Args:
        ids: Token ids of each row; all rows have the same length.
        positions: Position of each token in its own sequence, one list for all rows.
        ends: Indices of the end-of-text tokens in each row.
        prefix: Number of first tokens, which all other tokens of a row see.
        chunks: For each chunk of tokens after the prefix, the index of each token's parent, the token that it follows.
            Indices count the tokens of the prefix and then of the chunk; the very first token has -1. A token sees
            its ancestors. Attention is computed chunk by chunk.
    """

    positions: Tensor
    ends: Tensor

    def __init__(
        self, ids: list[list[int]], positions: list[int], ends: list[list[int]], prefix: int, chunks: list[list[int]]
    ) -> None:
        super().__init__(ids)
        self.prefix = prefix
        self.num_chunks = len(chunks)
        self._joined: dict[tuple[torch.device, torch.dtype], tuple[ChunkedMask, ChunkedMask]] = {}
        self._register("positions", torch.tensor(positions))  # [S]
        self._register("ends", torch.tensor(ends))  # [R, K]
        start = 0
        for index, chunk in enumerate(chunks):
            mask = causal_mask([*range(-1, prefix - 1), *chunk])
            # Attention costs S x S within a chunk, so chunks bound it. Only the first has the prefix's own rows.
            mask = mask[prefix if index else 0 :]
            inside = [end - start for end in ends[0] if start <= end < start + len(mask)]
            self._register(f"mask_{index}", mask)
            self._register(f"ends_{index}", torch.tensor(inside, dtype=torch.long))
            start += len(mask)

    def masks(self, dtype: torch.dtype) -> tuple[ChunkedMask, ChunkedMask]:
        """Make the masks of a row's tokens, and of the end-of-text tokens of a single row, in a data type."""
        # On a GPU, starting many small computations takes longer than a few larger ones. Joining the masks takes many
        # as well, so they are kept, except during export, where tensors have no values.
        joins = self.ids.device.type != "cpu" and self.num_chunks > 1 and not torch.compiler.is_exporting()
        key = (self.ids.device, dtype)
        if joins and key in self._joined:
            return self._joined[key]
        mask = ChunkedMask(self.prefix, self._chunk_buffers("mask")).to(dtype)
        masks = (mask, mask.select_queries(self._chunk_buffers("ends")))
        if joins:
            with torch.inference_mode(False):
                masks = (masks[0].join(DEVICE_BUDGET), masks[1].join(DEVICE_BUDGET))
            self._joined = {key: masks}
        return masks

    def _run(self, tower: TextTower, tokens: Tokens, between: Sequence[Between]) -> Float[Tensor, "_ d"]:
        causal = cast(OpenCLIPTextTower, tower)
        tokens = tokens + causal.positions(self.positions)
        mask, end_mask = self.masks(causal.blocks.compute_dtype)
        # For one packed row, the last block is run only for the end-of-text tokens, since features are read there.
        if len(self.ends) == 1:
            hidden = causal.transform(tokens, mask, between, self.ends[0], end_mask)
            return causal.project(hidden.flatten(0, 1))
        hidden = causal.transform(tokens, mask, between).view(-1, *self.ids.shape, tokens.shape[-1])  # [N, R, S, D]
        # Several rows end at different positions, so the last block is run for all tokens.
        rows = torch.arange(len(self.ends), device=self.ends.device)[:, None]
        return causal.project(hidden[:, rows, self.ends].flatten(0, 2))

    def _chunk_buffers(self, name: str) -> tuple[Tensor, ...]:
        return tuple(cast(Tensor, getattr(self, f"{name}_{index}")) for index in range(self.num_chunks))


def make_rows(
    tower: TextTower, sequences: Sequence[Sequence[int]], packs: bool = True, token_budget: int = 96
) -> TokenRows:
    """Arrange sequences in the fewest and shortest rows that leave a tower's features unchanged.

    Args:
        tower: The text tower that will encode the rows.
        sequences: Token ids of each sequence, through its end-of-text token.
        packs: Whether a causal tower gets all sequences in one row rather than a row for each sequence.
        token_budget: See `pack`.
    """
    if not all(map(tower.reads_end, sequences)):
        return FilledRows(tower.fill(sequences))
    return pack(sequences, token_budget) if packs else stack(sequences, max(map(len, sequences)))


def encode_side_by_side(
    tower: TextTower, rows: Sequence[TokenRows], prompts: Sequence[Float[Tensor, "L D"]]
) -> list[Float[Tensor, "sequences d"]]:
    """Compute the joint features, not normalised, of rows that have a prompt each.

    The tower runs packed rows in one call. This helps small packs, since products of few tokens are slow.
    """
    packed = [row for row in rows if isinstance(row, CausalRows)]
    if not isinstance(tower, OpenCLIPTextTower) or len(packed) < len(rows):
        return [row.encode(tower, prompt[None])[0] for row, prompt in zip(rows, prompts, strict=True)]
    parts = [row.embed(tower, prompt[None])[0] for row, prompt in zip(packed, prompts, strict=True)]
    starts = accumulate((row.ids.shape[1] for row in packed[:-1]), initial=0)
    # The rows are joined into one, so their indices shift by the lengths of the rows before.
    ends = torch.cat([row.ends[0] + start for row, start in zip(packed, starts, strict=True)])
    tokens = torch.cat(parts, dim=1) + tower.positions(torch.cat([row.positions for row in packed]))
    masks, end_masks = zip(*(row.masks(tower.blocks.compute_dtype) for row in packed), strict=True)
    hidden = tower.transform(tokens, BlockDiagonalMask(masks), (), ends, BlockDiagonalMask(end_masks))
    return list(torch.split(tower.project(hidden)[0], [row.ends.shape[1] for row in packed]))


def pack(sequences: Sequence[Sequence[int]], token_budget: int = 96) -> CausalRows:
    """Make one packed row `[shared prefix, rest 1, rest 2, ...]`, with attention in chunks.

    Within a chunk, the rest of a sequence omits the first tokens that it shares with the sequence before it.

    Args:
        sequences: Token ids of each sequence, through its end-of-text token.
        token_budget: Largest length of prefix and chunk together, in tokens; a longer rest gets its own chunk.
    """
    prefix = shared_prefix_length(sequences)
    chunks: list[list[int]] = [[]]
    ids = list(sequences[0][:prefix])
    positions = list(range(prefix))
    ends = []
    path: list[int] = []  # indices of the previous sequence's tokens in its chunk
    before: Sequence[int] = []
    for sequence in sequences:
        shared = shared_prefix_length([before, sequence]) if before else prefix
        # A new chunk sees only the prefix, so it repeats the tokens shared with the previous sequence.
        if chunks[-1] and prefix + len(chunks[-1]) + len(sequence) - shared > token_budget:
            chunks.append([])
            shared = prefix
        # This sequence follows the prefix and the tokens that it shares with the previous sequence.
        path = [*range(prefix), *path[prefix:shared]]
        for _ in range(shared, len(sequence)):
            chunks[-1].append(path[-1] if path else -1)
            path.append(prefix + len(chunks[-1]) - 1)
        ids.extend(sequence[shared:])
        positions.extend(range(shared, len(sequence)))
        ends.append(len(ids) - 1)
        before = sequence
    return CausalRows([ids], positions, [ends], prefix, chunks)


def stack(sequences: Sequence[Sequence[int]], length: int) -> CausalRows:
    """Make one row for each sequence, padded with zeros to `length` tokens."""
    # The tower is causal, so tokens after a sequence's end are never seen.
    ids = [[*sequence, *[0] * (length - len(sequence))] for sequence in sequences]
    ends = [[len(sequence) - 1] for sequence in sequences]
    return CausalRows(ids, list(range(length)), ends, 0, [list(range(-1, length - 1))])


def shared_prefix_length(sequences: Sequence[Sequence[int]]) -> int:
    """Count the first tokens that all sequences share, leaving at least one token to each.

    >>> shared_prefix_length([[7, 5, 1, 9], [7, 5, 2, 9]])
    2
    """
    length = 0
    for ids in zip(*sequences, strict=False):  # as far as the shortest goes
        if len(set(ids)) > 1:
            return length
        length += 1
    # The last token of the shortest sequence is not shared, since features are read there.
    return length - 1


def causal_mask(parents: Sequence[int]) -> Float[Tensor, "length length"]:
    """Make the additive mask that lets a token see itself and its ancestors.

    ``parents`` are the indices of the tokens that each token follows, always an earlier token; -1 for none.

    >>> causal_mask([-1, 0, 0])
    tensor([[0., -inf, -inf],
            [0., 0., -inf],
            [0., -inf, 0.]])
    """
    visible = torch.eye(len(parents), dtype=torch.bool)
    for index, parent in enumerate(parents):
        if parent >= 0:
            # Parents come first, so the parent's row is complete.
            visible[index] |= visible[parent]
    return torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))
