"""Server optimizers against Algorithm 2 written out number by number, over several rounds."""

import math

import pytest
import torch

from fedvlp.core.aggregation.base import WeightedMean
from fedvlp.core.aggregation.robust import NormClipping
from fedvlp.core.aggregation.server_optimizers import FedAdam, FedYogi, ServerMomentum

ROUNDS = [[[0.5, -2.0], [1.5, 0.25]], [[0.75, -1.0], [3.0, 0.5]], [[-1.0, 2.5], [0.125, -0.5]]]
"""What two clients send in three rounds."""
WEIGHTS = [3, 1]


def means():
    return [[(3 * one + other) / 4 for one, other in zip(*sent, strict=True)] for sent in ROUNDS]


def trained(rule, before=(0.25, 1.0)):
    state = {"p": torch.tensor(before)}
    memory = {}
    for sent in ROUNDS:
        state, memory = rule.aggregate([{"p": torch.tensor(value)} for value in sent], WEIGHTS, state, memory)
    return state["p"].tolist()


def slow(start, second_moment, rate, beta1, tau):
    """Algorithm 2 for one number at a time."""
    found = []
    for place, value in enumerate(start):
        first = 0.0
        second = tau**2
        for mean in means():
            step = mean[place] - value
            first = beta1 * first + (1 - beta1) * step
            second = second_moment(second, step * step)
            value += rate * first / (math.sqrt(second) + tau)
        found.append(value)
    return found


def of_adam(second, square):
    return 0.9 * second + 0.1 * square


def of_yogi(second, square):
    return second - 0.1 * square * math.copysign(1, second - square)


@pytest.mark.parametrize(("rule", "second_moment"), [(FedAdam, of_adam), (FedYogi, of_yogi)])
def test_against_the_algorithm(rule, second_moment):
    expected = slow((0.25, 1.0), second_moment, 0.3, 0.6, 0.02)
    found = trained(rule(learning_rate=0.3, beta1=0.6, beta2=0.9, tau=0.02))
    assert found == pytest.approx(expected, abs=1e-5)


def test_momentum_against_a_loop():
    expected = []
    for place, value in enumerate((0.25, 1.0)):
        velocity = 0.0
        for mean in means():
            velocity = 0.7 * velocity + mean[place] - value
            value += 0.4 * velocity
        expected.append(value)
    assert trained(ServerMomentum(learning_rate=0.4, momentum=0.7)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("inner", [WeightedMean(), NormClipping(0.5)])
def test_whole_steps_without_momentum_are_the_inner_rule_to_the_bit(inner):
    generator = torch.Generator().manual_seed(0)
    draw = lambda: {"p": torch.randn(1000, generator=generator)}  # noqa: E731
    before, states = draw(), [draw() for _ in range(5)]
    weights = [5, 1, 7, 2, 3]
    memory = {}
    rule = ServerMomentum(learning_rate=1.0, momentum=0.0, inner=inner)
    for _ in range(2):
        after, memory = rule.aggregate(states, weights, before, memory)
        assert torch.equal(after["p"], inner.combine(states, weights, before)["p"])


def test_moments_of_tensors_and_of_nested_optimizers_do_not_meet():
    """Tensors may be called like moments, and an optimizer may follow another of its own kind."""
    rule = ServerMomentum(learning_rate=0.5, momentum=0.9, inner=ServerMomentum(learning_rate=1.0, momentum=0.5))
    before = {"p": torch.tensor([1.0]), "velocity/p": torch.tensor([2.0]), "inner/velocity/p": torch.tensor([4.0])}
    sent = {name: 3 * value + 1 for name, value in before.items()}
    _, together = rule.aggregate([sent], [1], before, {})
    assert len(together) == 2 * len(before)
    state, memory = before, {}
    for _ in range(3):
        state, memory = rule.aggregate([sent], [1], state, memory)
    for name in before:
        alone, kept = {"p": before[name]}, {}
        for _ in range(3):
            alone, kept = rule.aggregate([{"p": sent[name]}], [1], alone, kept)
        assert torch.equal(state[name], alone["p"]), name


def test_moments_are_in_float32_and_tensors_as_they_were():
    before = {"p": torch.tensor([1.0, 2.0]).half()}
    after, memory = FedAdam().aggregate([{"p": torch.tensor([3.0, -1.0]).half()}], [1], before, {})
    assert after["p"].dtype == torch.float16
    assert {value.dtype for value in memory.values()} == {torch.float32}
