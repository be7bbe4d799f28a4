"""Strategies that break each part of the contract are told so; own ones keep to it (tests/core/strategies)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from fedvlp.core.aggregation import CoordinateMedian, WeightedMean
from fedvlp.core.slots import Slots
from fedvlp.core.strategies import FedAvg
from fedvlp.testing import ContractError, check_strategy
from fedvlp.utils.errors import UserError
from tests.helpers.shapes import unchecked


class Spoilt:
    """A strategy whose server state after FedAvg is changed by ``spoil(after, server, updates)``."""

    def aggregate(self, server, updates):
        return type(self).spoil(super().aggregate(server, updates), server, updates)


def spoilt(function) -> Any:
    return type("Spoilt", (Spoilt, FedAvg), {"spoil": staticmethod(function)})()


def broadcasting(function) -> Any:
    return type("Spoilt", (FedAvg,), {"broadcast": lambda self, server, client: function(server)})()


def grows(after, server, updates):
    server.shared["more"] = torch.ones(1)
    return after


def with_shared(name, change):
    return lambda after, server, updates: after.updated({name: change(after.shared["bias"])}) if updates else after


@dataclass
class Thawed(FedAvg.__mro__[1]):
    def aggregate(self, server, updates):
        return server


@dataclass(frozen=True)
class SaysItCombines(Slots.__mro__[1]):
    """Takes the first upload, and says that uploads count in their sum."""

    aggregator: Any = field(default_factory=WeightedMean)
    memory_name: str = "here"

    @property
    def reduces_cohort(self):
        return True

    def groups(self, clients, cohort_size):
        return {"": cohort_size}

    def aggregate(self, server, updates):
        return server.updated(updates[0].state) if updates else server


BROKEN = {
    "no strategy": (object(), "must have the methods broadcast, aggregate and check"),
    "changes server": (spoilt(grows), "must change nothing that it is given"),
    "draws": (spoilt(with_shared("bias", torch.rand_like)), r"same updates, but in shared 'bias' differs"),
    "format": (spoilt(with_shared("bias", torch.Tensor.half)), r"keep names, shapes and formats .*\['bias'\]"),
    "names": (spoilt(with_shared("more", torch.clone)), r"keep names, shapes and formats .*\['more'\]"),
    "not finite": (spoilt(with_shared("bias", lambda value: value / 0)), "'bias' is NaN or infinite"),
    "gradient": (
        spoilt(with_shared("bias", lambda value: value * torch.ones(1, requires_grad=True))),
        "keep a gradient",
    ),
    "memory": (
        spoilt(lambda after, *_: replace(after, memory={"count": torch.tensor(torch.inf)})),
        "in memory 'count' is",
    ),
    "deploys": (spoilt(lambda after, *_: replace(after, deployed={"odd": torch.ones(1)})), r"\['odd'\] is not"),
    "counts": (spoilt(lambda after, *_: replace(after, round=after.round + 1)), "must leave round as it is"),
    "other type": (spoilt(lambda after, server, updates: after.shared), "must return a ServerState"),
    "empty cohort": (
        spoilt(lambda after, server, updates: after.updated({"bias": torch.ones(4)})),
        "where nobody sent",
    ),
    "download": (broadcasting(lambda server: {"bias": 3}), r"broadcast must give tensors; \['bias'\]"),
    "download draws": (broadcasting(lambda server: {"bias": torch.rand(4)}), "broadcast must give the same"),
    "download changes": (
        broadcasting(lambda server: {"sum": server.shared["bias"].add_(1).sum() * 0}),
        "must not change the server",
    ),
    "linear": (SaysItCombines(), "reduces_cohort says .* but with the same sum"),
    "thawed": (Thawed(), "Thawed must be a frozen dataclass"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_strategy_that_breaks_the_contract_is_told(name):
    strategy, message = BROKEN[name]
    with pytest.raises(ContractError, match=message), unchecked():
        check_strategy(strategy)


def test_what_is_shared_and_sent_can_be_given():
    check_strategy(FedAvg(aggregator=CoordinateMedian()))
    with pytest.raises(UserError, match="slots"):
        check_strategy(Slots("client", slots=1))
