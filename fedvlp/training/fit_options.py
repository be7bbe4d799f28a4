"""The options of a federation that change what is trained, checked before anything runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedvlp.core.aggregation import Aggregator, describe_aggregator
from fedvlp.core.state import Client
from fedvlp.training.attack import Attack
from fedvlp.training.availability import Availability
from fedvlp.training.failures import FailurePolicy
from fedvlp.training.local_training import LocalTraining
from fedvlp.training.time_limit import check_time_limit
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import NonNegativeInt, PositiveInt, Seed, check_range

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FitOptions:
    """How a federation trains; the federation's own docstring explains each option.

    Attributes:
        rounds: number of communication rounds, at least 0.
        local: how long a client trains in each phase.
        cohort_size: clients of a round, at least 1; None for all.
        clients_per_step: clients that are trained at once, at least 1.
        evaluate_every: rounds from one evaluation to the next, at least 1.
        patience: evaluations without a better one after which training stops, at least 1; None for never.
        seed: of every random draw.
        personal_on_disk: whether what stays on the clients is kept in files.
        failures: what is done about clients that fail.
        aggregation: how uploads are combined in every phase that does; None leaves it to the method.
        attack: what hostile clients do; None if all are honest.
        availability: which clients drop out or straggle.
    """

    rounds: NonNegativeInt
    local: LocalTraining
    cohort_size: PositiveInt | None
    clients_per_step: PositiveInt
    evaluate_every: PositiveInt
    patience: PositiveInt | None
    seed: Seed
    personal_on_disk: bool
    failures: FailurePolicy
    aggregation: Aggregator | None = None
    attack: Attack | None = None
    availability: Availability = field(default_factory=Availability)

    def __post_init__(self) -> None:
        """Checks the ranges."""
        check_range("rounds", self.rounds, NonNegativeInt)
        check_range("cohort_size", self.cohort_size, PositiveInt)
        check_range("clients_per_step", self.clients_per_step, PositiveInt)
        check_range("evaluate_every", self.evaluate_every, PositiveInt)
        check_range("patience", self.patience, PositiveInt)
        check_range("seed", self.seed, Seed)

    def check(self, clients: Sequence[Client]) -> None:
        """Raises UserError if a round has fewer clients than its phases need, or the time of one can't be limited."""
        check_time_limit(self.failures.client_timeout)
        if self.failures.client_timeout is not None and self.clients_per_step > 1:
            raise UserError(
                f"client_timeout is the time of one client, but clients_per_step of {self.clients_per_step} trains "
                "several at once. Leave one of them out."
            )
        if any(client.is_pool for client in clients):
            self._check_pooled()
        cohort = min(len(clients), self.cohort_size or len(clients))
        needed = self.failures.min_clients
        if cohort < needed:
            raise UserError(
                f"A round has {cohort} clients, but min_clients is {needed}. Lower it, or let more take part."
            )

    def _check_pooled(self) -> None:
        """Raises UserError for what only a federation has; warns where the optimizer does not go on."""
        of_federation = {
            "aggregation": self.aggregation is not None,
            "attack": self.attack is not None,
            "client_dropout": self.availability.dropout > 0,
            "stragglers": self.availability.stragglers > 0,
            "proximal_weight": self.local.proximal_weight > 0,
            "max_update_norm": self.failures.max_update_norm is not None,
        }
        if given := [name for name, is_given in of_federation.items() if is_given]:
            raise UserError(
                f"The partition Pooled trains centrally, without clients, so there can be no {', '.join(given)}. "
                "Leave that out, or take another partition."
            )
        if self.local.reset_optimizer and self.rounds > 1:
            log.warning(
                "The optimizer starts anew in each round. Ordinary centralised training goes on with it: "
                "set trainer.reset_optimizer to false, as --config centralised does."
            )

    def describe(self) -> dict[str, Any]:
        """Returns the options that must be equal for a run to be continued; the number of rounds may differ."""
        described = {
            "seed": self.seed,
            "cohort_size": self.cohort_size,
            "max_update_norm": self.failures.max_update_norm,
            **self.local.describe(self.rounds),
        }
        # Left out where they are not given, so that a run is described as it was before there was a choice.
        if self.aggregation is not None:
            described["aggregation"] = describe_aggregator(self.aggregation)
        if self.attack is not None:
            described["attack"] = self.attack.describe()
        return described | self.availability.describe()
