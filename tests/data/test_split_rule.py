from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fedvlp.data import few_shot, stratified_split
from fedvlp.data.split_rule import OfficialSplit, SplitRule, generator_for


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


def test_roles_that_are_given_are_kept_and_the_others_drawn_from_training_images():
    """For each role that an official split may give: who has which images, and that nobody has one twice."""
    labels = np.repeat(np.arange(3), [9, 4, 12])
    given = {"train": np.arange(3, 25), "validation": np.asarray([0, 2]), "test": np.asarray([1])}
    rule = SplitRule(validation_fraction=0.25, test_fraction=0.3, seed=5)
    for names in ([], ["train"], ["validation"], ["test"], ["train", "test"], ["train", "validation"], list(given)):
        official = {name: given[name] for name in names}
        parts = rule.divide(labels, "ink", official)
        for name in names:
            if name != "train":
                assert parts[name].tolist() == given[name].tolist()
        drawn = [name for name in parts if name not in names]
        everybody = np.concatenate([parts[name] for name in {"train", *drawn}])
        assert len(everybody) == len(set(everybody.tolist()))
        assert set(everybody.tolist()) <= set(official.get("train", np.arange(25)).tolist())
        assert all(len(parts[name]) for name in parts)


def test_without_a_test_fraction_nothing_tests():
    parts = SplitRule().divide(np.repeat(np.arange(2), 5), "ink")
    assert {role: len(rows) for role, rows in parts.items()} == {"train": 8, "validation": 2, "test": 0}


def test_draws_for_test_validation_and_shots_are_of_different_names():
    """Else a seed that is unlucky for one would be for all."""
    labels = np.zeros(40, dtype=np.int64)
    rule = SplitRule(validation_fraction=0.5, test_fraction=0.5, shots=3, seed=5)
    parts = rule.divide(labels, "ink")
    rest, test = stratified_split(labels, 0.5, generator_for(5, "test/ink"))
    stay, validation = stratified_split(labels[rest], 0.5, generator_for(5, "ink"))
    train = rest[stay]
    assert parts["test"].tolist() == test.tolist()
    assert parts["validation"].tolist() == rest[validation].tolist()
    assert parts["train"].tolist() == train[few_shot(labels[train], 3, generator_for(5, "shots/ink"))].tolist()


def test_an_official_split_has_the_roles_that_any_domain_has():
    official = OfficialSplit("train/test", {"ink": {"train": np.arange(3)}, "photo": {"test": np.asarray([2])}})
    assert official.has("train")
    assert official.has("test")
    assert not official.has("validation")
    assert not official.has("held_out")
