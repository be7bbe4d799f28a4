"""Counts what a run gives away of any one client, where the server adds noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedvlp.core.phases import Phase
from fedvlp.core.state import Client
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.training.privacy_accounting import PrivacyAccount, privacy_account


class Privacy(FederationCallback):
    """Adds ``privacy/epsilon`` and ``privacy/delta`` of all rounds so far to each round's row.

    They depend on the number of rounds alone, so a resumed run counts the rounds before it, and one from which clients
    are left out counts as if they were there. Runs without noise have no such columns.

    Attributes:
        account: of the running federation; None where no rule adds noise.
    """

    def __init__(self) -> None:
        self.account: PrivacyAccount | None = None
        self.is_known = False

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Forgets the run before."""
        self.account = None
        self.is_known = False

    def on_round_start(self, federation: RunView, phases: Sequence[Phase], cohort: Sequence[Client]) -> None:
        """Says before the first round what all rounds will give away."""
        if self.is_known:
            return
        self.is_known = True
        self.account = privacy_account(phases, len(federation.data.clients), len(cohort))
        if self.account is not None:
            federation.fabric.print(self.account.describe(federation.rounds), flush=True)

    def on_round_metrics(self, federation: RunView, row: dict[str, Any]) -> None:
        """Adds what the rounds so far gave away."""
        if self.account is not None:
            row["privacy/epsilon"] = self.account.epsilon(row["round"])
            row["privacy/delta"] = self.account.delta

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Says what was given away."""
        federation: RunView = trainer
        if self.account is not None:
            federation.fabric.print(self.account.describe(federation.run_state.server.round), flush=True)
