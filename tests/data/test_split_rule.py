from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fedvlp.data import few_shot, stratified_split
from fedvlp.data.split_rule import generator_for


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5, 0.99])
def test_every_class_is_on_both_sides(fraction):
    labels = np.repeat(np.arange(6), [1, 2, 3, 10, 55, 100])
    train, validation = stratified_split(labels, fraction, np.random.default_rng(0))
    assert sorted([*train, *validation]) == list(range(len(labels)))
    counts = np.bincount(labels[validation], minlength=6)
    assert counts[0] == 0  # the only image of a class trains
    for size, count in zip([2, 3, 10, 55, 100], counts[1:], strict=True):
        assert count == min(max(round(fraction * size), 1), size - 1)


def test_split_depends_on_the_generator_alone():
    labels = np.repeat(np.arange(3), 20)

    def validation(seed, name):
        return stratified_split(labels, 0.2, generator_for(seed, name))[1].tolist()

    assert validation(0, "a") == validation(0, "a")
    assert validation(0, "a") != validation(1, "a")
    assert validation(0, "a") != validation(0, "b")


def test_split_of_nothing():
    train, validation = stratified_split([], 0.2, np.random.default_rng(0))
    assert len(train) == len(validation) == 0


def test_few_shots_are_nested():
    labels = np.random.default_rng(1).integers(0, 5, 100)
    chosen = [set(few_shot(labels, shots, np.random.default_rng(7)).tolist()) for shots in (1, 2, 4, 8, 16)]
    assert [len(found) for found in chosen] == [5, 10, 20, 40, 80]
    assert all(fewer < more for fewer, more in pairwise(chosen))
    assert chosen[0] != set(few_shot(labels, 1, np.random.default_rng(8)).tolist())
