"""Runs that are broken off between two rounds."""

from collections.abc import Sequence

from fedvlp.core.phases import Phase
from fedvlp.core.state import Client
from fedvlp.training.callback import FederationCallback, RunView


class Interrupted(Exception):
    """Ends a run in place of the user."""


class StopAfter(FederationCallback):
    """Breaks a run off when so many rounds are done and their checkpoint is written."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def on_round_start(self, federation: RunView, phases: Sequence[Phase], cohort: Sequence[Client]) -> None:
        """Raises before the round that follows."""
        if federation.run_state.server.round == self.rounds:
            raise Interrupted
