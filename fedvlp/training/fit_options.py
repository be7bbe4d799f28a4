"""The options of a federation that change what is trained, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedvlp.training.local_training import LocalTraining
from fedvlp.utils.checked import check_fields
from fedvlp.utils.ranges import NonNegativeInt, PositiveInt, Seed


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
    """

    rounds: NonNegativeInt
    local: LocalTraining
    cohort_size: PositiveInt | None
    clients_per_step: PositiveInt
    evaluate_every: PositiveInt
    patience: PositiveInt | None
    seed: Seed
    personal_on_disk: bool

    def __post_init__(self) -> None:
        """Refuses numbers that are out of range."""
        check_fields(self)

    def describe(self) -> dict[str, Any]:
        """Returns the options that must be equal for a run to be continued; the number of rounds may differ."""
        return {"seed": self.seed, "cohort_size": self.cohort_size, **self.local.describe(self.rounds)}
