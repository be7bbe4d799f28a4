"""Rules that break each part of the contract are told so; own rules keep to it (tests/core/aggregation)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedvlp.core.aggregation import Aggregator, CoordinateMedian, WeightedMean
from fedvlp.testing import ContractError, check_aggregator
from tests.helpers.shapes import unchecked


def changed(key: str, change: Callable) -> Callable:
    return lambda made, states, before: {**made, key: change(made[key])}


def changes_what_it_is_given(made, states, before):
    states[0]["bias"].zero_()
    return made


def first(made, states, before):
    return dict(states[0])


@dataclass(frozen=True)
class Remembers(WeightedMean):
    def aggregate(self, states, weights, before, memory):
        return self.combine(states, weights, before), {"count": 3}


@dataclass(frozen=True)
class ChangesMemory(WeightedMean):
    def aggregate(self, states, weights, before, memory):
        memory["count"] = torch.ones(1)
        return self.combine(states, weights, before), memory


@dataclass(frozen=True)
class SaysLinear(CoordinateMedian):
    is_linear = True


@dataclass
class Thawed(Aggregator):
    def combine(self, states, weights, before):
        return dict(states[0])


@dataclass(frozen=True)
class WithFunction(WeightedMean):
    function: Any = print


@dataclass(frozen=True)
class Combining(WeightedMean):
    """Combines as its class attribute says."""

    def combine(self, states, weights, before):
        return type(self).spoil(super().combine(states, weights, before), states, before)


def combining(function):
    return type("Combining", (Combining,), {"spoil": staticmethod(function)})()


BROKEN = {
    "no rule": (object(), "must be a subclass of Aggregator"),
    "function as option": (WithFunction(), "must be numbers, strings or aggregators"),
    "changes uploads": (combining(changes_what_it_is_given), "combine must change nothing"),
    "draws": (combining(changed("bias", torch.rand_like)), "must give the same for the same uploads"),
    "format": (combining(changed("bias", torch.Tensor.float)), "must give tensors as those sent"),
    "names": (combining(lambda made, states, before: {"bias": made["bias"]}), "must give tensors as those sent"),
    "not finite": (combining(changed("bias", lambda value: value / 0)), "makes NaN or infinity"),
    "order": (combining(first), "must not depend on the order of clients"),
    "memory": (Remembers(), r"must remember tensors, which checkpoints hold; \['count'\]"),
    "changes memory": (ChangesMemory(), "aggregate must change nothing"),
    "linear": (SaysLinear(), "is_linear says .* but with the same sum"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_rule_that_breaks_the_contract_is_told(name):
    rule, message = BROKEN[name]
    with pytest.raises(ContractError, match=message), unchecked():
        check_aggregator(rule)


def test_a_rule_that_is_not_frozen_is_told():
    with pytest.raises(ContractError, match="Thawed must be a frozen dataclass"):
        check_aggregator(Thawed())


@pytest.mark.parametrize("least", [0, 1.5])
def test_a_rule_needs_at_least_one_upload(least):
    kind = type("Few", (WeightedMean,), {"min_clients": least})
    with pytest.raises(ContractError, match="min_clients must be a whole number above 0"):
        check_aggregator(kind())
