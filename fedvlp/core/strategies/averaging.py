"""Federated averaging, and different strategies for different tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fedvlp.core.aggregation import Aggregator, WeightedMean
from fedvlp.core.state import Client, ClientUpdate, ServerState, matches_prefix, select
from fedvlp.core.strategies.base import Reducer, Strategy


@dataclass(frozen=True)
class FedAvg(Reducer):
    """Weighted mean of the uploads (McMahan et al. 2017, Algorithm 1), or what another aggregator makes of them.

    Args:
        weighting: ``examples`` weighs a client by its training images, ``uniform`` counts each client once.
        aggregator: what combines the uploads; some count each client once, whatever the weighting.
        memory_name: names the aggregator's memory; the federation gives each of a round its own.

    >>> import torch
    >>> from fedvlp.core.state import Client
    >>> server = ServerState.start({"prompt": torch.zeros(1)})
    >>> few = ClientUpdate(Client(0, 0, 10), {"prompt": torch.tensor([1.0])}, num_examples=10)
    >>> many = ClientUpdate(Client(1, 1, 30), {"prompt": torch.tensor([5.0])}, num_examples=30)
    >>> FedAvg().aggregate(server, [few, many]).shared
    {'prompt': tensor([4.])}
    >>> FedAvg("uniform").aggregate(server, [few, many]).shared
    {'prompt': tensor([3.])}
    """

    weighting: Literal["examples", "uniform"] = "examples"
    aggregator: Aggregator = field(default_factory=WeightedMean)
    memory_name: str = "FedAvg"

    @property
    def reduces_cohort(self) -> bool:
        """True: all uploads go through the aggregator."""
        return True

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Replaces the uploaded tensors by what is made of them; too few uploads for the aggregator change nothing."""
        if len(updates) < self.aggregator.min_clients:
            return server
        weights = [self.weight(update) for update in updates]
        states = [update.state for update in updates]
        shared, memory = self.reduced(states, weights, server.shared, server)
        return server.updated(shared, **memory)

    def weight(self, update: ClientUpdate) -> float:
        """How much an update counts: what an add-on decided, or the client's images, or 1."""
        if update.weight is not None:
            return update.weight
        return update.num_examples if self.weighting == "examples" else 1


@dataclass(frozen=True)
class ByName(Strategy):
    """Different strategies for different tensors of the same upload, applied one after another.

    Args:
        parts: from a name, or several, to the strategy that combines the tensors of these names.

    >>> import torch
    >>> from fedvlp.core.state import Client
    >>> from fedvlp.core.strategies.slots import Slots
    >>> server = ServerState.start({"visual": torch.zeros(1), "text": torch.zeros(2, 1)})
    >>> upload = {"visual": torch.tensor([7.0]), "text": torch.tensor([9.0])}
    >>> strategy = ByName({"visual": FedAvg(), "text": Slots(by="domain")})
    >>> strategy.aggregate(server, [ClientUpdate(Client(0, 1, 5), upload, 5)]).shared["text"].tolist()
    [[0.0], [9.0]]
    """

    parts: Mapping[str | tuple[str, ...], Strategy]

    @property
    def reduces_cohort(self) -> bool:
        """Whether every part does."""
        return all(strategy.reduces_cohort for strategy in self.parts.values())

    @property
    def reducers(self) -> tuple[Reducer, ...]:
        """Those of all parts."""
        every: list[Reducer] = []
        for strategy in self.parts.values():
            every += strategy.reducers
        return tuple(every)

    def with_reducers(self, change: Callable[[Reducer], Strategy]) -> Strategy:
        """The same with changed parts."""
        return ByName({names: strategy.with_reducers(change) for names, strategy in self.parts.items()})

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Gives each part its own share of every upload."""
        for names, strategy in self.parts.items():
            prefixes = _prefixes(names)
            server = strategy.aggregate(
                server, [replace(update, state=select(update.state, prefixes)) for update in updates]
            )
        return server

    def averaged(self, names: Sequence[str]) -> list[str]:
        """Those of some tensors that the parts average over the whole cohort."""
        averaged: set[str] = set()
        for key, strategy in self.parts.items():
            averaged.update(strategy.averaged([name for name in names if matches_prefix(_prefixes(key), name)]))
        return [name for name in names if name in averaged]

    def check(self, clients: Sequence[Client]) -> None:
        """Raises what any part would."""
        for strategy in self.parts.values():
            strategy.check(clients)


def _prefixes(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names
