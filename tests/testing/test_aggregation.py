"""Aggregators and strategies that break the contract are rejected. Those of fedvlp are tested in tests/core."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from fedvlp.core.aggregation.base import Aggregator, WeightedMean
from fedvlp.core.aggregation.robust import CoordinateMedian
from fedvlp.core.slots import Slots
from fedvlp.core.strategies import FedAvg
from fedvlp.testing import ContractError, check_aggregator, check_strategy
from fedvlp.utils.errors import UserError
from tests.helpers.shapes import unchecked


def change_tensor(key: str, change: Callable) -> Callable:
    return lambda made, states, before: {**made, key: change(made[key])}


def change_arguments(made, states, before):
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
class ClaimsLinear(CoordinateMedian):
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
    """Averages and then applies ``spoil``, a class attribute."""

    def combine(self, states, weights, before):
        return type(self).spoil(super().combine(states, weights, before), states, before)


def make_aggregator(function):
    return type("Combining", (Combining,), {"spoil": staticmethod(function)})()


def with_minimum(count: float) -> WeightedMean:
    return type("Few", (WeightedMean,), {"min_clients": count})()


BROKEN_RULES = {
    "no rule": (object(), "must be a subclass of Aggregator"),
    "function as option": (WithFunction(), "must be numbers, strings or aggregators"),
    "changes uploads": (make_aggregator(change_arguments), "combine must not modify its arguments"),
    "draws": (make_aggregator(change_tensor("bias", torch.rand_like)), "must return equal results for equal uploads"),
    "format": (make_aggregator(change_tensor("bias", torch.Tensor.float)), "must return tensors like the uploads"),
    "not frozen": (Thawed(), "Thawed must be a frozen dataclass"),
    "not finite": (make_aggregator(change_tensor("bias", lambda value: value / 0)), "returns NaN or infinity"),
    "order": (make_aggregator(first), "must not depend on the order of clients"),
    "memory": (Remembers(), r"must keep only tensors in its memory, for checkpoints; \['count'\]"),
    "changes memory": (ChangesMemory(), "aggregate must not modify its arguments"),
    "no upload": (with_minimum(0), "min_clients must be an integer above 0"),
    "fraction of uploads": (with_minimum(1.5), "min_clients must be an integer above 0"),
    "linear": (ClaimsLinear(), "is_linear claims .* but for the same sum"),
}


@pytest.mark.parametrize("name", BROKEN_RULES)
def test_an_aggregator_that_breaks_the_contract_is_rejected(name):
    rule, message = BROKEN_RULES[name]
    with pytest.raises(ContractError, match=message), unchecked():
        check_aggregator(rule)


class Spoilt:
    """A strategy that changes FedAvg's result with ``spoil(after, server, updates)``."""

    def aggregate(self, server, updates):
        return type(self).spoil(super().aggregate(server, updates), server, updates)


def spoil(function) -> Any:
    return type("Spoilt", (Spoilt, FedAvg), {"spoil": staticmethod(function)})()


def make_broadcast(function) -> Any:
    return type("Spoilt", (FedAvg,), {"broadcast": lambda self, server, client: function(server)})()


def add_tensor(after, server, updates):
    server.shared["more"] = torch.ones(1)
    return after


def change_shared(name, change):
    return lambda after, server, updates: after.updated({name: change(after.shared["bias"])}) if updates else after


@dataclass
class ThawedStrategy(FedAvg.__mro__[1]):
    def aggregate(self, server, updates):
        return server


BROKEN_STRATEGIES = {
    "no strategy": (object(), "must have the methods broadcast, aggregate and check"),
    "changes server": (spoil(add_tensor), "must not modify its arguments"),
    "draws": (spoil(change_shared("bias", torch.rand_like)), r"equal updates, but in shared 'bias' differs"),
    "format": (
        spoil(change_shared("bias", torch.Tensor.half)),
        r"preserve names, shapes and formats .*\['bias'\]",
    ),
    "not finite": (spoil(change_shared("bias", lambda value: value / 0)), "'bias' is NaN or infinite"),
    "gradient": (
        spoil(change_shared("bias", lambda value: value * torch.ones(1, requires_grad=True))),
        "keep a gradient",
    ),
    "memory": (
        spoil(lambda after, *_: replace(after, memory={"count": torch.tensor(torch.inf)})),
        "in memory 'count' is",
    ),
    "deploys": (spoil(lambda after, *_: replace(after, deployed={"odd": torch.ones(1)})), r"\['odd'\] are not"),
    "counts": (spoil(lambda after, *_: replace(after, round=after.round + 1)), "must not change round"),
    "other type": (spoil(lambda after, server, updates: after.shared), "must return a ServerState"),
    "empty cohort": (
        spoil(lambda after, server, updates: after.updated({"bias": torch.ones(4)})),
        "must not change shared tensors without updates",
    ),
    "download": (make_broadcast(lambda server: {"bias": 3}), r"broadcast must return tensors; \['bias'\]"),
    "download draws": (make_broadcast(lambda server: {"bias": torch.rand(4)}), "broadcast must return equal results"),
    "download changes": (
        make_broadcast(lambda server: {"sum": server.shared["bias"].add_(1).sum() * 0}),
        "broadcast must not modify its arguments",
    ),
    "thawed": (ThawedStrategy(), "ThawedStrategy must be a frozen dataclass"),
}


@pytest.mark.parametrize("name", BROKEN_STRATEGIES)
def test_a_strategy_that_breaks_the_contract_is_rejected(name):
    strategy, message = BROKEN_STRATEGIES[name]
    with pytest.raises(ContractError, match=message), unchecked():
        check_strategy(strategy)


def test_strategies_may_have_aggregators_and_slots():
    check_strategy(FedAvg(aggregator=CoordinateMedian()))
    with pytest.raises(UserError, match="slots"):
        check_strategy(Slots("client", slots=1))
