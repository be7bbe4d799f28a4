"""Packed rows: which tokens they hold, and that each sequence sees itself alone."""

from __future__ import annotations

import pytest

from fedvlp.clip.text.packing import pack, shared_prefix_length

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
        seen = packed.mask.dense()[end] == 0
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
