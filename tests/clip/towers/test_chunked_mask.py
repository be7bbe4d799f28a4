"""Attention in chunks against attention of all tokens at once, one token and head at a time."""

from __future__ import annotations

import pytest
import torch

from fedvlp.clip.text.packing import pack
from fedvlp.clip.towers.chunked_mask import ChunkedMask, SideBySide, attend

PREFIX, LENGTHS = [1, 2, 3], [2, 4, 1, 3, 2]
GROUPS = [-1] * 3 + [group for group, length in enumerate(LENGTHS) for _ in range(length)]
PLACES = range(len(GROUPS))
SEES = torch.tensor([[at <= place and GROUPS[at] in (-1, GROUPS[place]) for at in PLACES] for place in PLACES])


def rows(token_budget=8):
    return pack([PREFIX + [10 + group] * length for group, length in enumerate(LENGTHS)], token_budget)


def tokens(number, sequences=2):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(sequences, number, 12, generator=generator, dtype=torch.float64) for _ in range(3)]


def slow_attention(query, key, value, sees, heads=3):
    """What each token reads, head by head, from the tokens that it sees."""
    output, width = torch.zeros_like(query), query.shape[-1] // heads
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
    assert mask.length == mask.num_asking == len(GROUPS)
    found = mask.to(torch.float64).attend(*tokens(len(GROUPS)), 3)
    torch.testing.assert_close(found, slow_attention(*tokens(len(GROUPS)), SEES))


def test_gradients_are_those_of_whole_rows():
    mask, gradients = rows().mask.to(torch.float64), []
    for read in (lambda *parts: mask.attend(*parts, 3), lambda *parts: attend(*parts, 3, mask.whole())):
        parts = [part.requires_grad_() for part in tokens(len(GROUPS))]
        gradients.append(torch.autograd.grad(read(*parts).sin().sum(), parts))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("token_budget", [1, 8, 100])
def test_whole_mask_is_that_of_the_groups(token_budget):
    assert torch.equal(rows(token_budget).mask.whole() == 0, SEES)


def test_some_tokens_ask_as_they_do_among_all():
    packed, (query, key, value) = rows(), tokens(len(GROUPS))
    mask = packed.mask.to(torch.float64)
    expected = mask.attend(query, key, value, 3)[:, packed.ends[0]]
    found = packed.at_ends(mask).attend(query[:, packed.ends[0]], key, value, 3)
    torch.testing.assert_close(found, expected)


def test_rows_side_by_side_read_what_each_reads_alone():
    masks = (rows().mask.to(torch.float64), ChunkedMask(0, (torch.zeros(4, 4, dtype=torch.float64),)))
    both, parts = SideBySide(masks), tokens(len(GROUPS) + 4)
    found = both.attend(*parts, 3)
    for mask, own in zip(masks, (slice(0, len(GROUPS)), slice(len(GROUPS), None)), strict=True):
        torch.testing.assert_close(found[:, own], mask.attend(*(part[:, own] for part in parts), 3))
    torch.testing.assert_close(found, attend(*parts, 3, both.whole()))


ALIKE = [[1, 2, 3, 4, 5, 9], [1, 2, 3, 4, 6, 9], [1, 2, 3, 7, 9], [1, 2, 8, 9]]


def test_sequences_that_begin_alike_are_a_tree():
    packed = pack(ALIKE, token_budget=100)
    assert packed.ids.tolist() == [[1, 2, 3, 4, 5, 9, 6, 9, 7, 9, 8, 9]]
    assert packed.positions.tolist() == [0, 1, 2, 3, 4, 5, 4, 5, 3, 4, 2, 3]
    assert packed.ends.tolist() == [[5, 7, 9, 11]]


def test_a_chunk_repeats_what_the_one_before_it_has():
    packed = pack(ALIKE, token_budget=8)
    assert packed.ids.tolist() == [[1, 2, 3, 4, 5, 9, 6, 9, 3, 7, 9, 8, 9]]
    assert [len(mask) for mask in packed.mask.masks] == [8, 5]


@pytest.mark.parametrize("token_budget", [1, 7, 8, 100])
@pytest.mark.parametrize("sequences", [ALIKE, ALIKE[::-1], ALIKE + ALIKE, ALIKE[:1], [[4, 9], [5, 9]]])
def test_each_end_sees_its_own_sequence_and_nothing_else(sequences, token_budget):
    packed = pack(sequences, token_budget)
    for end, sequence in zip(packed.ends[0], sequences, strict=True):
        seen = packed.mask.whole()[end] == 0
        assert packed.ids[0, seen].tolist() == sequence
        assert packed.positions[seen].tolist() == list(range(len(sequence)))
