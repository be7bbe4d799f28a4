"""Normal numbers from random words: their distribution, where they come from, and that none is infinite."""

import os

import numpy as np
import pytest
import torch
from scipy import stats

from fedvlp.core.aggregation import privacy as noise
from fedvlp.core.aggregation.privacy import seeded_normals, system_normals, with_noise


def test_numbers_are_normal_and_independent():
    drawn = seeded_normals(5)(40_000).numpy()
    assert stats.kstest(drawn, "norm").pvalue > 0.01
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.02
    assert stats.kstest(2 * drawn, "norm").pvalue < 1e-6, "or the test shows nothing"


def test_system_draws_from_the_operating_system_alone(monkeypatch):
    asked = []

    def urandom(count):
        asked.append(count)
        return np.random.default_rng(len(asked)).bytes(count)

    monkeypatch.setattr(os, "urandom", urandom)
    drawn = system_normals()(20_000)
    assert asked == [160_000]
    assert drawn.dtype == torch.float64
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 0.01


def test_system_never_repeats():
    assert not torch.equal(system_normals()(8), system_normals()(8))


def test_seeded_draws_go_on_and_do_not_repeat():
    draw = seeded_normals(5)
    first, second = draw(6), draw(6)
    assert not torch.equal(first, second)
    assert torch.equal(torch.cat([first, second]), seeded_normals(5)(12))


def test_first_and_last_words_are_finite_and_opposite():
    ends = noise._normals(np.array([0, 2**64 - 1, 2**63], np.uint64))
    assert ends[0] == -ends[1]
    assert 8 < ends[1] < 9
    assert abs(ends[2]) < 1e-15


def test_noise_of_each_number_is_its_own_and_of_the_asked_size():
    state = {"p": torch.full((300, 40), 7.0), "scalar": torch.tensor(-2.0).half()}
    noised = with_noise(state, 0.5, seeded_normals(1))
    assert noised["p"].std().item() == pytest.approx(0.5, rel=0.02)
    assert noised["p"].mean().item() == pytest.approx(7.0, abs=0.02)
    assert noised["p"].unique().numel() == 12_000
    assert (noised["scalar"].dtype, noised["scalar"].shape) == (torch.float64, ())
    assert noised["scalar"] != -2


def test_without_noise_nothing_is_drawn():
    def draw(count):
        raise AssertionError

    state = {"p": torch.tensor([0.5, -3.0])}
    assert with_noise(state, 0.0, draw)["p"].tolist() == [0.5, -3.0]
