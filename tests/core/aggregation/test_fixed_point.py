"""Fixed-point numbers: computed by hand, up to their bounds, and with the same sum in any order."""

import numpy as np
import pytest
import torch

from fedvlp.core.aggregation.fixed_point import LARGEST, MOST_CLIENTS, MOST_WEIGHT, decode, encode, fixed_point_error


def compute_mean(states, weights):
    return decode(np.sum([encode(*each) for each in zip(states, weights, strict=True)], axis=0), states[0])


def test_the_largest_sum_does_not_wrap_around():
    state = {"p": torch.tensor([LARGEST, -LARGEST])}
    mean = compute_mean([state] * MOST_CLIENTS, [MOST_WEIGHT] * MOST_CLIENTS)
    assert torch.equal(mean["p"], state["p"])
    assert int(encode(state, MOST_WEIGHT)[0]) * (MOST_CLIENTS + 1) == 2**63, "one more client would overflow"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_means_have_the_names_shapes_and_formats_of_uploads(dtype):
    states = [{"q": torch.tensor([[1], [5]]).to(dtype), "p": torch.tensor(7).to(dtype)}]
    states.append({"q": torch.tensor([[4], [2]]).to(dtype), "p": torch.tensor(-2).to(dtype)})
    mean = compute_mean(states, [2, 1])
    assert {name: value.dtype for name, value in mean.items()} == {"p": dtype, "q": dtype}
    assert mean["q"].tolist() == [[2], [4]]
    assert mean["p"].item() == 4


def test_neither_order_nor_cancelling_masks_change_any_bit():
    generator = torch.Generator().manual_seed(3)
    states = [{"p": torch.randn(50, generator=generator)} for _ in range(7)]
    weights = [3, 100_000, 17, 1, 450, 9, 31]
    mean = compute_mean(states, weights)
    assert torch.equal(mean["p"], compute_mean(states[::-1], weights[::-1])["p"])
    mask = np.random.default_rng(5).integers(0, 2**64, 51, np.uint64)
    masked = [encode(state, weight) + mask for state, weight in zip(states, weights, strict=True)]
    total = sum(masked, np.zeros(51, np.uint64)) - np.uint64(7) * mask
    assert torch.equal(mean["p"], decode(total, states[0])["p"])
    exact = sum(state["p"].double() * weight for state, weight in zip(states, weights, strict=True)) / sum(weights)
    assert (mean["p"].double() - exact).abs().max() < 1e-7


@pytest.mark.parametrize(
    ("value", "weight", "reason"),
    [
        (float("nan"), 1, "uploads NaN or infinity"),
        (-32.5, 1, "beyond 32"),
        (1.0, 0, "the weight 0"),
        (1.0, 2.5, "the weight 2.5"),
        (1.0, 2**20 + 1, "from 1 to 1,048,576"),
        (-32.0, 2**20, ""),
    ],
)
def test_values_and_weights_out_of_range_are_rejected(value, weight, reason):
    error = fixed_point_error({"p": torch.tensor([0.5, value])}, weight)
    assert (reason in error) if reason else not error
