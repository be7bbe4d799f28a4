"""Runs that are interrupted between two rounds."""

from collections.abc import Sequence

from fedvlp.core.phases import Phase
from fedvlp.core.state import Client
from fedvlp.training.callback import FederationCallback, RunView


class Interrupted(Exception):
    """Raised to end a run, like a user's interrupt."""


class StopAfter(FederationCallback):
    """Interrupts a run after the given number of rounds, once their checkpoint is written."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def on_round_start(self, federation: RunView, phases: Sequence[Phase], cohort: Sequence[Client]) -> None:
        """Raise if the given number of rounds is done."""
        if federation.run_state.server.round == self.rounds:
            raise Interrupted
