"""The phases of a round: what each trains and sends, and where aggregators make one state of several uploads."""

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

# Marks the draws of aggregators among all that depend on a seed.
AGGREGATORS = 0x52756C65


@dataclass(frozen=True)
class Phase:
    """One train-and-communicate stage of a round; a round is a list of phases.

    Attributes:
        name: what the paper calls the stage.
        train: names (or prefixes) of the parameters that get gradients.
        upload: names (or prefixes) of the tensors sent to the server afterwards.
        strategy: what the server sends and what it does with the uploads.
        download: names (or prefixes) of those tensors that clients need of what the strategy sends; all if not given.
        deploy: names (or prefixes) of the only tensors that evaluation needs after the phase; all if not given.
        one_pass: whether clients, instead of training, pass through their images once without gradients: they call
            ``training_step`` for each batch, whatever ``trainer.local`` says about epochs and steps.
    """

    name: str
    train: tuple[str, ...]
    upload: tuple[str, ...]
    strategy: Strategy
    download: tuple[str, ...] | None = None
    deploy: tuple[str, ...] | None = None
    one_pass: bool = False

    def broadcast(self, server: ServerState, client: Client) -> State:
        """What a client downloads before it trains."""
        sent = self.strategy.broadcast(server, client)
        return sent if self.download is None else select(sent, self.download)

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """The server's state after the cohort's updates; no updates change nothing."""
        if not updates:
            return server
        server = server.scoped(self.name, partial(self.strategy.aggregate, updates=updates))
        if self.deploy is None:
            return server
        return replace(server, deployed=select(server.deployed, self.deploy))

    def after_validation(self, server: ServerState, loss: float) -> ServerState:
        """Update the server's state once the source validation loss is known, if the strategy uses it."""
        if not self.strategy.uses_validation_loss:
            return server
        return server.scoped(self.name, partial(self.strategy.after_validation, loss=loss))


@dataclass(frozen=True)
class RoundContext:
    """Where training is, read-only for methods: finished rounds, the running phase, and whose data are trained on."""

    round: int
    phase: Phase
    client: Client


def with_aggregation(
    phases: Sequence[Phase],
    aggregation: Aggregator | None,
    clients: Sequence[Client],
    cohort_size: int | None = None,
    seed: int = 0,
) -> tuple[Phase, ...]:
    """Put one aggregator wherever several clients' uploads become one state, and bind all aggregators to the round.

    A strategy that keeps each client's upload by itself is unchanged, e.g. if each domain is one client. Without
    ``aggregation`` the strategies keep their own aggregators. Raises UserError where an aggregator can't be used.
    """
    size = min(cohort_size or len(clients), len(clients))
    bound = tuple(_bound(index, phase, aggregation, clients, size, seed) for index, phase in enumerate(phases))
    guarantees(bound)
    reducers = [reducer for phase in bound for reducer in phase.strategy.reducers]
    if aggregation is not None and phases and not any(reducer.groups(clients, size) for reducer in reducers):
        raise UserError(
            f"trainer.server.aggregation is {to_jsonable(aggregation)}, but no phase of the method makes one "
            "state of several clients' uploads. Leave it out, or use a partition with several clients a domain."
        )
    return bound


def _bound(
    index: int, phase: Phase, aggregation: Aggregator | None, clients: Sequence[Client], size: int, seed: int
) -> Phase:
    """Tell a phase's aggregators the number of clients, and give each its own seed."""
    numbers = count()

    def bind(reducer: Reducer) -> Aggregator:
        groups = reducer.groups(clients, size)
        aggregator = aggregation if aggregation is not None and groups else reducer.aggregator
        for name, num_clients in groups.items():
            aggregator.check(num_clients, f"phase {phase.name!r}{', ' if name else ''}{name}")
        number = next(numbers)
        # Two places of a round never draw the same, whether they have one aggregator or two.
        drawn = derive_seed(AGGREGATORS, seed, index, number)
        return aggregator.bound(sum(groups.values()) or size, drawn)

    return replace(phase, strategy=phase.strategy.with_aggregators(bind))


def too_few_uploads(
    strategy: Strategy, clients: Sequence[Client], cohort_size: int, uploading: Sequence[Client]
) -> Mapping[str, str]:
    """Explain, by the group of uploads, why an aggregator has too few of them."""
    problems: dict[str, str] = {}
    for reducer in strategy.reducers:
        needed = reducer.aggregator.min_clients
        if needed == 1:  # as for any mean: to group all clients takes longer than a round's other checks
            continue
        for group in reducer.groups(clients, cohort_size):
            uploads = sum(group in ("", f"domain {client.domain}") for client in uploading)
            # No upload at all leaves the group unchanged, as where none of its clients was sampled.
            if 0 < uploads < needed:
                name = type(reducer.aggregator).__name__
                problems[group] = f"{name} needs uploads of {needed} clients and has {uploads}"
    return problems


def most_needed_uploads(strategy: Strategy, clients: Sequence[Client], cohort_size: int) -> int:
    """How many uploads of a round's cohort a strategy's aggregators need, at least 1."""
    whole_cohort = [reducer for reducer in strategy.reducers if "" in reducer.groups(clients, cohort_size)]
    return max([1, *(reducer.aggregator.min_clients for reducer in whole_cohort)])


def client_noise(strategy: Strategy) -> ClientNoise | None:
    """What each client does to its upload before it sends it, as its aggregator asks; None for nothing."""
    return next((reducer.aggregator.client_noise for reducer in strategy.reducers), None)


def guarantees(phases: Sequence[Phase]) -> tuple[PrivacyGuarantee, ...]:
    """List the differential privacy of each reduction in a round; raise UserError if other uploads have no noise."""
    given: list[PrivacyGuarantee] = []
    for phase in phases:
        for reducer in phase.strategy.reducers:
            if reducer.aggregator.guarantee is not None:
                given.append(reducer.aggregator.guarantee)
    for phase in phases if given else ():
        if reason := _exposed(phase.strategy):
            raise UserError(
                f"Phase {phase.name!r} can't be differentially private: {reason}. Leave DPFedAvg out, or take a method "
                "that averages all that is sent, such as PromptFL or TRIP."
            )
    return tuple(given)


def _exposed(strategy: Strategy) -> str:
    """Why something of the uploads gets past the noise; an empty string if nothing does."""
    if not strategy.reduces_cohort:
        one_by_one = [type(reducer).__name__ for reducer in strategy.reducers if not reducer.reduces_cohort]
        name = one_by_one[0] if one_by_one else type(strategy).__name__
        return f"its strategy {name} looks at uploads one by one, and does not average the cohort's"
    aggregators = [reducer.aggregator for reducer in strategy.reducers]
    if len(aggregators) > 1 and any(aggregator.client_noise for aggregator in aggregators):
        return "clients add noise to a whole upload, and its tensors are combined in several ways"
    plain = [type(aggregator).__name__ for aggregator in aggregators if aggregator.guarantee is None]
    return f"its aggregator {plain[0]} adds no noise" if plain else ""
