"""Packed rows: their tokens, isolation of sequences, and attention in chunks."""

import pytest
import torch

from fedvlp.clip import PromptedTextEncoder, load_clip
from fedvlp.clip.blocks import BlockDiagonalMask, ChunkedMask
from fedvlp.clip.packing import pack, shared_prefix_length
from tests.helpers.fake_cuda import NEEDS_FAKE_CUDA, fake_cuda, move_module


def dense(mask):
    """Make the dense mask of a whole row."""
    full = torch.full((mask.length, mask.length), -torch.inf)
    start = 0
    for index, part in enumerate(mask.masks):
        rows = slice(start, start + len(part))
        full[rows, : mask.prefix] = part[:, : mask.prefix]
        full[rows, rows] = part[:, mask.prefix :] if index else part
        start = rows.stop
    return full


ALIKE = [[1, 2, 3, 4, 5, 9], [1, 2, 3, 4, 6, 9], [1, 2, 3, 7, 9], [1, 2, 8, 9]]


def test_sequences_that_begin_alike_are_a_tree():
    packed = pack(ALIKE, token_budget=100)
    assert packed.ids.tolist() == [[1, 2, 3, 4, 5, 9, 6, 9, 7, 9, 8, 9]]
    assert packed.positions.tolist() == [0, 1, 2, 3, 4, 5, 4, 5, 3, 4, 2, 3]
    assert packed.ends.tolist() == [[5, 7, 9, 11]]


def test_chunks_repeat_shared_tokens():
    packed = pack(ALIKE, token_budget=8)
    assert packed.ids.tolist() == [[1, 2, 3, 4, 5, 9, 6, 9, 3, 7, 9, 8, 9]]
    assert [len(mask) for mask in packed.masks(torch.float32)[0].masks] == [8, 5]


@pytest.mark.parametrize("token_budget", [1, 7, 8, 100])
@pytest.mark.parametrize("sequences", [ALIKE, ALIKE[::-1], ALIKE + ALIKE, ALIKE[:1], [[4, 9], [5, 9]]])
def test_each_end_sees_its_own_sequence_and_nothing_else(sequences, token_budget):
    packed = pack(sequences, token_budget)
    for end, sequence in zip(packed.ends[0], sequences, strict=True):
        seen = dense(packed.masks(torch.float32)[0])[end] == 0
        assert packed.ids[0, seen].tolist() == sequence
        assert packed.positions[seen].tolist() == list(range(len(sequence)))


@pytest.mark.parametrize(
    ("sequences", "length"),
    [
        ([[1, 2, 9]], 2),
        ([[1, 2, 9], [1, 2, 9]], 2),
        ([[1, 9], [1, 9, 2, 9]], 1),
        ([[1], [1, 9]], 0),
        ([[1, 9], [2, 9]], 0),
    ],
)
def test_a_prefix_leaves_one_token_to_each(sequences, length):
    assert shared_prefix_length(sequences) == length


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
    """Compute the attention output of each token, head by head, from its visible tokens."""
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
def test_chunked_attention_equals_attention_on_whole_rows(token_budget, chunks):
    mask, _ = rows(token_budget).masks(torch.float64)
    assert len(mask.masks) == chunks
    assert mask.length == len(GROUPS)
    found = mask.attend(*tokens(len(GROUPS)), 3)
    torch.testing.assert_close(found, slow_attention(*tokens(len(GROUPS)), SEES))


@pytest.mark.parametrize(("budget", "chunks"), [(1, 5), (8, 3), (9, 2), (100, 1)])
def test_joined_chunks_attend_as_separate_ones(budget, chunks):
    mask, end_mask = rows(1).masks(torch.float64)
    joined = mask.join(budget)
    assert len(joined.masks) == chunks
    assert joined.length == mask.length
    torch.testing.assert_close(joined.attend(*tokens(len(GROUPS)), 3), mask.attend(*tokens(len(GROUPS)), 3))
    query, *others = tokens(len(GROUPS))
    query = query[:, : sum(map(len, end_mask.masks))]
    torch.testing.assert_close(end_mask.join(budget).attend(query, *others, 3), end_mask.attend(query, *others, 3))


@NEEDS_FAKE_CUDA
def test_a_gpu_joins_chunks_once():
    encoder = PromptedTextEncoder(load_clip("fedvlp-tiny"), list("abcdef"), prompt_length=4, token_budget=9)
    assert len(encoder.rows.masks(torch.float32)[0].masks) > 1
    with fake_cuda() as to_cuda:
        move_module(encoder, to_cuda)
        assert encoder(to_cuda(torch.randn(4, encoder.clip.text_width))).shape == (6, 128)
        masks = encoder.rows.masks(torch.bfloat16)
        assert [len(mask.masks) for mask in masks] == [1, 1]
        assert encoder.rows.masks(torch.bfloat16) is masks


def test_some_tokens_ask_as_they_do_among_all():
    packed = rows()
    query, *others = tokens(len(GROUPS))
    mask, end_mask = packed.masks(torch.float64)
    expected = mask.attend(query, *others, 3)[:, packed.ends[0]]
    found = end_mask.attend(query[:, packed.ends[0]], *others, 3)
    torch.testing.assert_close(found, expected)


def test_joined_rows_have_the_features_of_separate_rows():
    masks = (rows().masks(torch.float64)[0], ChunkedMask(0, (torch.zeros(4, 4, dtype=torch.float64),)))
    both = BlockDiagonalMask(masks)
    parts = tokens(len(GROUPS) + 4)
    found = both.attend(*parts, 3)
    for mask, own in zip(masks, (slice(0, len(GROUPS)), slice(len(GROUPS), None)), strict=True):
        torch.testing.assert_close(found[:, own], mask.attend(*(part[:, own] for part in parts), 3))
