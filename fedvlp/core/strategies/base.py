"""What every strategy is: what clients download, and how uploads become the next server state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedvlp.core.aggregation import Aggregator
from fedvlp.core.state import Client, ClientUpdate, ServerState, State
from fedvlp.utils.tensor_files import add_prefix, strip_prefix


class Strategy:
    """Server side of a phase: a pure pair of functions; a subclass is a frozen dataclass that overrides ``aggregate``.

    Neither function changes what it is given, and both are deterministic. Updates come sorted by client id, so that
    sums are taken in that order.

    Attributes:
        uses_validation_loss: whether ``after_validation`` is to be called wherever the federation is evaluated.
    """

    uses_validation_loss: ClassVar[bool] = False

    def broadcast(self, server: ServerState, client: Client) -> State:
        """What this client downloads before it trains; by default every shared tensor."""
        return server.shared

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """The server's state after the cohort's updates."""
        raise NotImplementedError(f"{type(self).__name__} has no aggregate().")

    def check(self, clients: Sequence[Client]) -> None:
        """Raises UserError, before training, if what these clients will send can't be combined."""

    def after_validation(self, server: ServerState, loss: float) -> ServerState:
        """The server's state once the source validation loss of what it shares is known.

        Args:
            server: after the round.
            loss: mean cross-entropy on source validation images, averaged over domains.
        """
        return server

    @property
    def reduces_cohort(self) -> bool:
        """Whether uploads change the server only through aggregators, each of which reduces the whole cohort's."""
        return False

    @property
    def reducers(self) -> tuple[Reducer, ...]:
        """The strategies in this one, itself included, that let an aggregator reduce uploads."""
        return ()

    def with_reducers(self, change: Callable[[Reducer], Strategy]) -> Strategy:
        """The same strategy in which each of the ``reducers`` is replaced by what ``change`` makes of it."""
        return self

    def averaged(self, names: Sequence[str]) -> list[str]:
        """Those of some uploaded tensors that are averaged over the whole cohort, in their order."""
        return list(names) if self.reduces_cohort and self.reducers else []


class Reducer(Strategy):
    """A strategy that lets an aggregator make one state of several uploads; a frozen dataclass with both fields.

    Attributes:
        aggregator: what makes one state of several.
        memory_name: names the aggregator's memory in the server's; the federation gives each of a round its own.
    """

    aggregator: Aggregator
    memory_name: str

    def groups(self, clients: Sequence[Client], cohort_size: int) -> Mapping[str, int]:
        """How many uploads are reduced together in a round, by whose they are; empty if each is kept by itself."""
        return {"": cohort_size}

    @property
    def reducers(self) -> tuple[Reducer, ...]:
        """The strategy itself."""
        return (self,)

    def with_reducers(self, change: Callable[[Reducer], Strategy]) -> Strategy:
        """What ``change`` makes of the strategy."""
        return change(self)

    def with_aggregator(self, aggregator: Aggregator, memory_name: str | None = None) -> Reducer:
        """The same strategy with another aggregator."""
        this: Any = self  # a dataclass, as every subclass is
        changed: Reducer = replace(this, aggregator=aggregator, memory_name=memory_name or self.memory_name)
        return changed

    def reduced(
        self, states: Sequence[State], weights: Sequence[float], before: State, server: ServerState, slot: str = ""
    ) -> tuple[State, State]:
        """What the aggregator makes of uploads, and its memory by the names that it has in the server's.

        Args:
            states: the uploads, as the aggregator takes them.
            weights: one an upload.
            before: the tensors that the clients started from.
            server: whose memory of the last round is taken.
            slot: where several states are made, which one.
        """
        name = self.memory_name + slot
        state, memory = self.aggregator.aggregate(states, weights, before, strip_prefix(server.memory, name))
        return state, add_prefix(memory, name)


@dataclass(frozen=True)
class Wrapper(Strategy):
    """Does something after another strategy, whose other properties it has.

    Args:
        inner: the other strategy.
    """

    inner: Strategy

    @property
    def reduces_cohort(self) -> bool:
        """Whether the inner strategy does; what is done around it looks at no upload."""
        return self.inner.reduces_cohort

    @property
    def reducers(self) -> tuple[Reducer, ...]:
        """Those of the inner strategy."""
        return self.inner.reducers

    def with_reducers(self, change: Callable[[Reducer], Strategy]) -> Strategy:
        """The same around the changed inner strategy."""
        return replace(self, inner=self.inner.with_reducers(change))

    def averaged(self, names: Sequence[str]) -> list[str]:
        """What the inner strategy averages."""
        return self.inner.averaged(names)

    def broadcast(self, server: ServerState, client: Client) -> State:
        """What the inner strategy sends."""
        return self.inner.broadcast(server, client)

    def check(self, clients: Sequence[Client]) -> None:
        """Raises what the inner strategy raises."""
        self.inner.check(clients)


@dataclass(frozen=True)
class Local(Strategy):
    """No communication at all, the baseline that every federation must beat: each client keeps what it trains."""

    @property
    def reduces_cohort(self) -> bool:
        """True: no upload changes the server."""
        return True

    def broadcast(self, server: ServerState, client: Client) -> State:
        """Nothing."""
        return {}

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """The server, unchanged."""
        return server
