"""Attention in chunks against attention of all tokens at once, one token and head at a time."""

from __future__ import annotations

import pytest
import torch

from fedvlp.clip.text.packing import pack
from fedvlp.clip.towers.attention_mask import BlockDiagonalMask, ChunkedMask, attend

PREFIX = [1, 2, 3]
LENGTHS = [2, 4, 1, 3, 2]
GROUPS = [-1, -1, -1, *torch.repeat_interleave(torch.tensor(LENGTHS)).tolist()]
SEES = torch.zeros(len(GROUPS), len(GROUPS), dtype=torch.bool)
for place, group in enumerate(GROUPS):
    SEES[place] = torch.tensor([at <= place and other in (-1, group) for at, other in enumerate(GROUPS)])


def rows(token_budget=8):
    return pack([PREFIX + [10 + group] * length for group, length in enumerate(LENGTHS)], token_budget)


def tokens(number, sequences=2):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(sequences, number, 12, generator=generator, dtype=torch.float64) for _ in range(3)]


def slow_attention(query, key, value, sees, heads=3):
    """What each token reads, head by head, from the tokens that it sees."""
    output = torch.zeros_like(query)
    width = query.shape[-1] // heads
    for sequence in range(len(query)):
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            for token in range(query.shape[1]):
                seen = [other for other in range(key.shape[1]) if sees[token, other]]
                scores = key[sequence, seen, part] @ query[sequence, token, part] / width**0.5
                output[sequence, token, part] = scores.softmax(0) @ value[sequence, seen, part]
    return output


@pytest.mark.parametrize(("token_budget", "chunks"), [(1, 5), (8, 3), (9, 2), (100, 1)])
def test_chunks_read_what_whole_rows_read(token_budget, chunks):
    mask = rows(token_budget).mask
    assert len(mask.masks) == chunks
    assert mask.length == mask.num_queries == len(GROUPS)
    found = mask.to(torch.float64).attend(*tokens(len(GROUPS)), 3)
    torch.testing.assert_close(found, slow_attention(*tokens(len(GROUPS)), SEES))


def test_gradients_are_those_of_whole_rows():
    mask = rows().mask.to(torch.float64)
    gradients = []
    for read in (lambda *parts: mask.attend(*parts, 3), lambda *parts: attend(*parts, 3, mask.dense())):
        parts = [part.requires_grad_() for part in tokens(len(GROUPS))]
        gradients.append(torch.autograd.grad(read(*parts).sin().sum(), parts))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("token_budget", [1, 8, 100])
def test_dense_mask_is_that_of_the_groups(token_budget):
    assert torch.equal(rows(token_budget).mask.dense() == 0, SEES)


def test_some_tokens_ask_as_they_do_among_all():
    packed = rows()
    query, *others = tokens(len(GROUPS))
    mask = packed.mask.to(torch.float64)
    expected = mask.attend(query, *others, 3)[:, packed.ends[0]]
    found = packed.at_ends(mask).attend(query[:, packed.ends[0]], *others, 3)
    torch.testing.assert_close(found, expected)


def test_rows_side_by_side_read_what_each_reads_alone():
    masks = (rows().mask.to(torch.float64), ChunkedMask(0, (torch.zeros(4, 4, dtype=torch.float64),)))
    both = BlockDiagonalMask(masks)
    parts = tokens(len(GROUPS) + 4)
    found = both.attend(*parts, 3)
    for mask, own in zip(masks, (slice(0, len(GROUPS)), slice(len(GROUPS), None)), strict=True):
        torch.testing.assert_close(found[:, own], mask.attend(*(part[:, own] for part in parts), 3))
    torch.testing.assert_close(found, attend(*parts, 3, both.dense()))
