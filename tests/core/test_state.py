import math

import pytest
import torch

from fedvlp.core.state import is_finite, weighted_mean


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_single_non_finite_value_is_found(wrong):
    values = torch.randn(100)
    assert is_finite({"prompt": values})
    values[37] = wrong
    assert not is_finite({"keys": torch.ones(3, dtype=torch.long), "prompt": values})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_with_overflowing_squares_are_finite(dtype):
    assert is_finite({"prompt": torch.full((2, 5), torch.finfo(dtype).max, dtype=dtype)})


def test_integers_are_finite_and_infinities_do_not_cancel():
    assert is_finite({"seen": torch.tensor([True, False]), "counts": torch.tensor(3), "none": torch.empty(0)})
    assert is_finite({"pixels": torch.ones(2, dtype=torch.uint16), "waves": torch.ones(2, dtype=torch.complex64)})
    assert not is_finite({"prompt": torch.tensor([math.inf, -math.inf])})


def test_weighted_mean_matches_a_loop():
    generator = torch.Generator().manual_seed(0)
    states = [{"prompt": torch.randn(3, 4, generator=generator)} for _ in range(5)]
    weights = [3, 0, 7, 1, 2]
    expected = sum(w * s["prompt"].double() for w, s in zip(weights, states, strict=True)) / 13
    assert torch.allclose(weighted_mean(states, weights)["prompt"].double(), expected, atol=1e-6)
