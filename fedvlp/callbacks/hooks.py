"""The hooks of a federation, in the order in which they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback
from torch import Tensor

from fedvlp.module import Phase
from fedvlp.state import Client, ClientUpdate, ServerState

if TYPE_CHECKING:
    from fedvlp.federation import Federation


class FederationCallback(Callback):
    """Lightning's callback with a federation's hooks; a subclass overrides those that it needs.

    ::

        setup, on_fit_start                   Lightning's own; they take (trainer, pl_module)
        for each round:
            on_round_start
            for each phase, for each client of the cohort:
                on_client_start               it has downloaded
                on_client_step                after each optimizer step
                on_client_end                 it has uploaded
            on_phase_end                      after each phase: the server has aggregated
            on_round_metrics                  the row of metrics may still be added to
            on_round_end                      the round counts: ``federation.progress`` holds it
        on_fit_end                            Lightning's own
    """

    def on_round_start(self, federation: Federation, phases: Sequence[Phase], cohort: Sequence[Client]) -> None:
        """Called when the cohort is known."""

    def on_client_start(self, federation: Federation, phase: Phase, client: Client, steps: int) -> None:
        """Called before a client trains ``steps`` steps; only in the process that trains it."""

    def on_client_step(self, federation: Federation, client: Client, loss: Tensor) -> None:
        """Called after each local step, with its loss."""

    def on_client_end(self, federation: Federation, phase: Phase, update: ClientUpdate) -> None:
        """Called after a client trained, with what it uploads; only in the process that trained it."""

    def on_phase_end(
        self,
        federation: Federation,
        phase: Phase,
        before: ServerState,
        server: ServerState,
        updates: Sequence[ClientUpdate],
    ) -> None:
        """Called after the server aggregated: its states before and after, and all updates that it received."""

    def on_round_metrics(self, federation: Federation, row: dict[str, Any]) -> None:
        """Called with the round's metrics, which may be added to."""

    def on_round_end(self, federation: Federation, row: dict[str, Any]) -> None:
        """Called when the round is over and counts."""
