"""Server optimizers, compared with Algorithm 2, written out number by number over several rounds."""

import math

import pytest
import torch

from fedvlp.core.aggregation.base import WeightedMean
from fedvlp.core.aggregation.robust import NormClipping
from fedvlp.core.aggregation.server_optimizers import FedAdam, FedYogi, ServerMomentum

ROUNDS = [[[0.5, -2.0], [1.5, 0.25]], [[0.75, -1.0], [3.0, 0.5]], [[-1.0, 2.5], [0.125, -0.5]]]
"""Uploads of two clients in three rounds."""
WEIGHTS = [3, 1]


def means():
    return [[(3 * one + other) / 4 for one, other in zip(*sent, strict=True)] for sent in ROUNDS]


def train(rule, before=(0.25, 1.0)):
    state = {"p": torch.tensor(before)}
    memory = {}
    for sent in ROUNDS:
        state, memory = rule.aggregate([{"p": torch.tensor(value)} for value in sent], WEIGHTS, state, memory)
    return state["p"].tolist()


def slow(start, second_moment, rate, beta1, tau):
    """Run Algorithm 2, one number at a time."""
    found = []
    for index, value in enumerate(start):
        first = 0.0
        second = tau**2
        for mean in means():
            step = mean[index] - value
            first = beta1 * first + (1 - beta1) * step
            second = second_moment(second, step * step)
            value += rate * first / (math.sqrt(second) + tau)
        found.append(value)
    return found


def adam_moment(second, square):
    return 0.9 * second + 0.1 * square


def yogi_moment(second, square):
    return second - 0.1 * square * math.copysign(1, second - square)


@pytest.mark.parametrize(("rule", "second_moment"), [(FedAdam, adam_moment), (FedYogi, yogi_moment)])
def test_optimizers_match_the_algorithm(rule, second_moment):
    expected = slow((0.25, 1.0), second_moment, 0.3, 0.6, 0.02)
    found = train(rule(learning_rate=0.3, beta1=0.6, beta2=0.9, tau=0.02))
    assert found == pytest.approx(expected, abs=1e-5)


def test_momentum_matches_a_loop():
    expected = []
    for index, value in enumerate((0.25, 1.0)):
        velocity = 0.0
        for mean in means():
            velocity = 0.7 * velocity + mean[index] - value
            value += 0.4 * velocity
        expected.append(value)
    assert train(ServerMomentum(learning_rate=0.4, momentum=0.7)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("inner", [WeightedMean(), NormClipping(0.5)])
def test_full_steps_without_momentum_equal_the_inner_aggregator(inner):
    generator = torch.Generator().manual_seed(0)
    draw = lambda: {"p": torch.randn(1000, generator=generator)}  # noqa: E731
    before, states = draw(), [draw() for _ in range(5)]
    weights = [5, 1, 7, 2, 3]
    memory = {}
    rule = ServerMomentum(learning_rate=1.0, momentum=0.0, inner=inner)
    for _ in range(2):
        after, memory = rule.aggregate(states, weights, before, memory)
        assert torch.equal(after["p"], inner.combine(states, weights, before)["p"])


def test_tensors_and_nested_optimizers_have_separate_moments():
    """Even if tensors are named like moments, and an optimizer wraps another of its class."""
    rule = ServerMomentum(learning_rate=0.5, momentum=0.9, inner=ServerMomentum(learning_rate=1.0, momentum=0.5))
    before = {"p": torch.tensor([1.0]), "velocity/p": torch.tensor([2.0]), "inner/velocity/p": torch.tensor([4.0])}
    sent = {name: 3 * value + 1 for name, value in before.items()}
    _, together = rule.aggregate([sent], [1], before, {})
    assert len(together) == 2 * len(before)
    state, memory = before, {}
    for _ in range(3):
        state, memory = rule.aggregate([sent], [1], state, memory)
    for name in before:
        single, memory = {"p": before[name]}, {}
        for _ in range(3):
            single, memory = rule.aggregate([{"p": sent[name]}], [1], single, memory)
        assert torch.equal(state[name], single["p"]), name


def test_moments_are_in_float32_and_tensors_keep_their_type():
    before = {"p": torch.tensor([1.0, 2.0]).half()}
    after, memory = FedAdam().aggregate([{"p": torch.tensor([3.0, -1.0]).half()}], [1], before, {})
    assert after["p"].dtype == torch.float16
    assert {value.dtype for value in memory.values()} == {torch.float32}
