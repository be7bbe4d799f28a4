import numpy as np
import pytest

from fedvlp.results.statistics import AVERAGE, SPREAD, cells, over_seeds, without_repeats


def test_cells_are_those_of_numpy():
    values = np.random.default_rng(0).uniform(40, 90, (5, 4))  # seeds, domains
    domains = ["a", "b", "c", "d"]
    found = cells({seed: dict(zip(domains, row.tolist(), strict=True)) for seed, row in enumerate(values)}, domains)
    for column, name in enumerate(domains):
        assert found[name].mean == pytest.approx(values[:, column].mean())
        assert found[name].deviation == pytest.approx(values[:, column].std(ddof=1))
    averages = values.mean(axis=1)
    spreads = values.std(axis=1, ddof=0)
    assert found[AVERAGE].mean == pytest.approx(averages.mean())
    assert found[AVERAGE].deviation == pytest.approx(averages.std(ddof=1))
    assert found[SPREAD].mean == pytest.approx(spreads.mean())
    assert found[SPREAD].deviation == pytest.approx(spreads.std(ddof=1))
    assert {cell.count for cell in found.values()} == {5}


def test_the_average_is_never_over_fewer_domains():
    scores = {0: {"a": 10.0, "b": 20.0}, 1: {"a": 50.0}}
    found = cells(scores, ["a", "b"])
    assert (found["a"].mean, found["a"].count) == (30.0, 2)
    assert (found["b"].mean, found["b"].count) == (20.0, 1)
    assert (found[AVERAGE].mean, found[AVERAGE].count) == (15.0, 1)
    assert AVERAGE not in cells({1: {"a": 50.0}}, ["a", "b"])


def test_one_domain_has_no_spread_and_one_seed_no_deviation():
    found = cells({0: {"a": 10.0}}, ["a"])
    assert SPREAD not in found
    assert found["a"].deviation is None
    assert over_seeds([1.0, 1.0]).deviation == 0.0


def test_seeds_that_differ_are_kept():
    scores = {0: {"a": 50.0}, 1: {"a": 51.0}}
    assert without_repeats(scores) == scores
    assert without_repeats({}) == {0: {}}
