"""What is measured and counted beside training: the untrained baseline, what is sent, and what is given away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedvlp.core.balance import Balance
from fedvlp.core.phases import Phase
from fedvlp.core.predictions import Predictions
from fedvlp.core.state import Client, ClientUpdate, ServerState, State
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.training.communication import COUNTS, exchange
from fedvlp.training.privacy_accounting import PrivacyAccount, privacy_account


class Baseline(FederationCallback):
    """Measures zero-shot CLIP, or what else a method names as its baseline, once before training on the same splits.

    Attributes:
        scores: accuracies in percent, named as those of a round; empty if the method names no baseline.
        predictions: by split, the predicted class of each image.
        balance: Scores by class, by split and role.
    """

    def __init__(self) -> None:
        self.scores: dict[str, float] = {}
        self.predictions: Mapping[str, Predictions] = {}
        self.balance: Balance = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Measures the baseline."""
        federation: RunView = trainer
        baseline = pl_module.baseline()
        if baseline is not None:
            baseline = federation.fabric.to_device(baseline)
            self.scores = federation.evaluate(baseline, baseline.shared_state(), {})
            # Kept here, since the next evaluation replaces those of the federation.
            self.predictions = federation.predictions
            self.balance = federation.balance


class Communication(FederationCallback):
    """Adds to each round's row the parameters and bytes that a client sent and received, over all phases.

    Attributes:
        counts: for each client of the running round, by id, the four ``COUNTS`` by name.
    """

    def __init__(self) -> None:
        self.counts: dict[int, Counter[str]] = {}

    def on_round_start(self, federation: RunView, phases: Sequence[Phase], cohort: Sequence[Client]) -> None:
        """Starts counting at zero."""
        self.counts = {}

    def on_phase_end(
        self,
        federation: RunView,
        phase: Phase,
        before: ServerState,
        server: ServerState,
        updates: Sequence[ClientUpdate],
        download: Callable[[Client], State],
    ) -> None:
        """Counts what each client downloaded and uploaded in this phase."""
        for update in updates:
            # Nothing is sent where the images are at the server.
            if not update.client.is_pool:
                counts = self.counts.setdefault(update.client.id, Counter())
                counts.update(exchange(download=download(update.client), upload=update.state))

    def on_round_metrics(self, federation: RunView, row: dict[str, Any]) -> None:
        """Writes the largest client's counts, which are every client's where all send the same; and the sum."""
        for name in COUNTS:
            # Methods with slots send some clients more than others; bandwidth must do for the largest.
            row[name] = max((counts[name] for counts in self.counts.values()), default=0)
        row["total_bytes"] = sum(counts["upload_bytes"] + counts["download_bytes"] for counts in self.counts.values())


class Privacy(FederationCallback):
    """Adds ``privacy/epsilon`` and ``privacy/delta`` of all rounds so far to each round's row.

    They depend on the number of rounds alone, so a resumed run counts the rounds before it, and one from which clients
    are left out counts as if they were there. Runs without noise have no such columns.

    Attributes:
        account: of the running federation; None where no rule adds noise.
    """

    def __init__(self) -> None:
        self.account: PrivacyAccount | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Forgets the run before."""
        self.account = None

    def on_round_start(self, federation: RunView, phases: Sequence[Phase], cohort: Sequence[Client]) -> None:
        """Prints before the first round what all rounds will give away."""
        # Only here are the phases known with the rules that the federation put into them.
        if self.account is None:
            self.account = privacy_account(phases, len(federation.data.clients), len(cohort))
            self._print(federation, federation.rounds)

    def on_round_metrics(self, federation: RunView, row: dict[str, Any]) -> None:
        """Adds what the rounds so far gave away."""
        if self.account is not None:
            row["privacy/epsilon"] = self.account.epsilon(row["round"])
            row["privacy/delta"] = self.account.delta

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Prints what was given away."""
        self._print(trainer, trainer.run_state.server.round)

    def _print(self, federation: RunView, rounds: int) -> None:
        if self.account is not None:
            federation.fabric.print(self.account.describe(rounds), flush=True)
