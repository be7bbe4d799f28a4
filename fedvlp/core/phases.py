"""Phases of a round, with their trained and uploaded tensors, and the aggregators that combine the uploads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from fedvlp.core.aggregation.base import Aggregator, ClientNoise, PrivacyGuarantee
from fedvlp.core.state import Client, ClientUpdate, ServerState, State, select
from fedvlp.core.strategies import Reducer, Strategy
from fedvlp.utils.digests import to_jsonable
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed

# Separates the random draws of aggregators from all others of the same seed.
AGGREGATORS = 0x52756C65


@dataclass(frozen=True)
class Phase:
    """One train-and-communicate stage of a round; a round is a list of phases.

    Attributes:
        name: The paper's name of the stage.
        train: Names or prefixes of the parameters that get gradients.
        upload: Names or prefixes of the tensors that clients send to the server after training.
        strategy: Chooses the tensors that the server sends, and combines the uploads.
        download: Names or prefixes of the broadcast tensors that clients need; all if None.
        deploy: Names or prefixes of the tensors that evaluation needs after the phase; all if None.
        one_pass: Whether clients pass once through their images without gradients instead of training. They call
            ``training_step`` for each batch and ignore the epochs and steps of ``trainer.local``.
    """

    name: str
    train: tuple[str, ...]
    upload: tuple[str, ...]
    strategy: Strategy
    download: tuple[str, ...] | None = None
    deploy: tuple[str, ...] | None = None
    one_pass: bool = False

    def broadcast(self, server: ServerState, client: Client) -> State:
        """Select the tensors that a client downloads before it trains."""
        tensors = self.strategy.broadcast(server, client)
        return tensors if self.download is None else select(tensors, self.download)

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Compute the server's state after the cohort's updates. Without updates it is unchanged."""
        if not updates:
            return server
        server = server.scoped(self.name, partial(self.strategy.aggregate, updates=updates))
        if self.deploy is None:
            return server
        return replace(server, deployed=select(server.deployed, self.deploy))

    def after_validation(self, server: ServerState, loss: float) -> ServerState:
        """Pass the source validation loss to the strategy, if it uses it, and get the server's new state."""
        if not self.strategy.uses_validation_loss:
            return server
        return server.scoped(self.name, partial(self.strategy.after_validation, loss=loss))


@dataclass(frozen=True)
class RoundContext:
    """The number of finished rounds, the current phase and the current client; read-only for methods."""

    round: int
    phase: Phase
    client: Client


def bind_aggregators(
    phases: Sequence[Phase],
    aggregation: Aggregator | None,
    clients: Sequence[Client],
    cohort_size: int | None = None,
    seed: int = 0,
) -> tuple[Phase, ...]:
    """Bind the phases' aggregators to the number of clients, replacing those that combine several clients' uploads.

    A strategy that keeps clients' uploads apart is unchanged, e.g. if each domain is one client. If ``aggregation`` is
    None, the strategies keep their aggregators. Raises UserError if an aggregator does not work with phases or clients.
    """
    size = min(cohort_size or len(clients), len(clients))
    bound = tuple(_bind_phase(index, phase, aggregation, clients, size, seed) for index, phase in enumerate(phases))
    privacy_guarantees(bound)
    reducers = [reducer for phase in bound for reducer in phase.strategy.reducers]
    if aggregation is not None and phases and not any(reducer.groups(clients, size) for reducer in reducers):
        raise UserError(
            f"trainer.server.aggregation is {to_jsonable(aggregation)}, but no phase of the method combines the "
            "uploads of several clients. Leave it out, or use a partition with several clients per domain."
        )
    return bound


def _bind_phase(
    index: int, phase: Phase, aggregation: Aggregator | None, clients: Sequence[Client], size: int, seed: int
) -> Phase:
    numbers = count()

    def bind(reducer: Reducer) -> Aggregator:
        groups = reducer.groups(clients, size)
        aggregator = aggregation if aggregation is not None and groups else reducer.aggregator
        for name, num_clients in groups.items():
            aggregator.check(num_clients, f"phase {phase.name!r}{', ' if name else ''}{name}")
        # Each reducer has its own seed, even if several share one aggregator.
        own_seed = derive_seed(AGGREGATORS, seed, index, next(numbers))
        return aggregator.bind(sum(groups.values()) or size, own_seed)

    return replace(phase, strategy=phase.strategy.replace_aggregators(bind))


def too_few_uploads(
    strategy: Strategy, clients: Sequence[Client], cohort_size: int, uploading: Sequence[Client]
) -> Mapping[str, str]:
    """Explain, per group of clients, why an aggregator has too few uploads."""
    problems: dict[str, str] = {}
    for reducer in strategy.reducers:
        needed = reducer.aggregator.min_clients
        if needed == 1:  # true for all means; grouping all clients is slower than the round's other checks
            continue
        for group in reducer.groups(clients, cohort_size):
            uploads = sum(group in ("", f"domain {client.domain}") for client in uploading)
            # Without any upload the group is unchanged, as if none of its clients had been sampled.
            if 0 < uploads < needed:
                name = type(reducer.aggregator).__name__
                problems[group] = f"{name} needs uploads of {needed} clients, got {uploads}"
    return problems


def most_needed_uploads(strategy: Strategy, clients: Sequence[Client], cohort_size: int) -> int:
    """Compute the number of uploads of a cohort that a strategy's aggregators need, at least 1."""
    whole_cohort = [reducer for reducer in strategy.reducers if "" in reducer.groups(clients, cohort_size)]
    return max([1, *(reducer.aggregator.min_clients for reducer in whole_cohort)])


def client_noise(strategy: Strategy) -> ClientNoise | None:
    """Get the noise that the aggregator asks clients to add to their uploads; None for no noise."""
    return next((reducer.aggregator.client_noise for reducer in strategy.reducers), None)


def privacy_guarantees(phases: Sequence[Phase]) -> tuple[PrivacyGuarantee, ...]:
    """List the privacy guarantee of each reduction in a round; raise UserError if only some uploads get noise."""
    guarantees = [reducer.aggregator.guarantee for phase in phases for reducer in phase.strategy.reducers]
    found = tuple(guarantee for guarantee in guarantees if guarantee is not None)
    for phase in phases if found else ():
        if reason := _missing_noise(phase.strategy):
            raise UserError(
                f"Phase {phase.name!r} can't be differentially private: {reason}. Remove DPFedAvg, or use a method "
                "that averages all uploads, such as PromptFL or TRIP."
            )
    return found


def _missing_noise(strategy: Strategy) -> str:
    """Explain why part of the uploads reaches the server without noise; an empty string if none does."""
    if not strategy.reduces_cohort:
        unreduced = [type(reducer).__name__ for reducer in strategy.reducers if not reducer.reduces_cohort]
        name = unreduced[0] if unreduced else type(strategy).__name__
        return f"its strategy {name} uses single uploads instead of the cohort's average"
    aggregators = [reducer.aggregator for reducer in strategy.reducers]
    if len(aggregators) > 1 and any(aggregator.client_noise for aggregator in aggregators):
        return "clients add noise to a whole upload, but several aggregators combine its tensors"
    noiseless = [type(aggregator).__name__ for aggregator in aggregators if aggregator.guarantee is None]
    return f"its aggregator {noiseless[0]} adds no noise" if noiseless else ""
