"""Callbacks that measure baselines, communication and privacy loss."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedvlp.core.balance import Balance
from fedvlp.core.phases import Phase
from fedvlp.core.predictions import Predictions
from fedvlp.core.state import Client, ClientUpdate, ServerState
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.training.communication import COUNTS, exchange
from fedvlp.training.evaluation import baselines
from fedvlp.training.privacy_accounting import PrivacyAccount, privacy_account
from fedvlp.training.task import PhaseTask


class Baselines(FederationCallback):
    """Evaluation of the baselines, such as zero-shot CLIP and class means, on the same splits before training.

    Accuracies, predictions and scores by class are stored by row title.
    """

    def __init__(self) -> None:
        self.scores: dict[str, dict[str, float]] = {}
        self.predictions: dict[str, Mapping[str, Predictions]] = {}
        self.balance: dict[str, Balance] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate the baselines."""
        federation: RunView = trainer
        for results in (self.scores, self.predictions, self.balance):
            results.clear()
        for title, baseline in baselines(pl_module, federation.data, federation.fabric, federation.baselines).items():
            self.scores[title] = federation.evaluate(baseline, baseline.shared_state(), {})
            # Store them, because the next evaluation replaces the federation's predictions and balance.
            self.predictions[title] = federation.predictions
            self.balance[title] = federation.balance


class Communication(FederationCallback):
    """Counter of the parameters and bytes that a client sends and receives per round, over all phases."""

    def __init__(self) -> None:
        self.counts: dict[int, Counter[str]] = {}

    def on_round_start(self, federation: RunView, phases: Sequence[Phase], cohort: Sequence[Client]) -> None:
        """Reset the counts."""
        self.counts = {}

    def on_phase_end(
        self, federation: RunView, task: PhaseTask, server: ServerState, updates: Sequence[ClientUpdate]
    ) -> None:
        """Count the downloads and uploads of each client in this phase."""
        for update in updates:
            # Pooled images are at the server, so nothing is sent.
            if not update.client.is_pool:
                counts = self.counts.setdefault(update.client.id, Counter())
                counts.update(exchange(download=task.download(update.client), upload=update.state))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Add the maximum counts over clients, and the total bytes, to the row of the round."""
        row = trainer.run_state.history[-1]
        for name in COUNTS:
            # Methods with slots send different amounts to clients; bandwidth must suffice for the maximum.
            row[name] = max((counts[name] for counts in self.counts.values()), default=0)
        row["total_bytes"] = sum(counts["upload_bytes"] + counts["download_bytes"] for counts in self.counts.values())
        self.counts = {}

    def state_dict(self) -> dict[str, Any]:
        """Save the counts of a round that a resumed run still has to evaluate."""
        return {str(client): dict(counts) for client, counts in self.counts.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the counts."""
        self.counts = {int(client): Counter(counts) for client, counts in state_dict.items()}


class Privacy(FederationCallback):
    """Accounting of ``privacy/epsilon`` and ``privacy/delta`` over all rounds so far.

    Both depend only on the number of rounds. A resumed run includes earlier rounds, and rejected clients count as if
    they had taken part. Runs without noise have no such columns.
    """

    def __init__(self) -> None:
        self.account: PrivacyAccount | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Print the privacy loss of all rounds."""
        federation: RunView = trainer
        cohort_size = federation.options.clients.cohort_size
        self.account = privacy_account(federation.phases, len(federation.data.clients), cohort_size)
        self._print(federation, federation.options.rounds)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Add the privacy loss of all rounds so far."""
        if self.account is not None:
            row = trainer.run_state.history[-1]
            row["privacy/epsilon"] = self.account.epsilon(row["round"])
            row["privacy/delta"] = self.account.delta

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Print the privacy loss of the finished rounds."""
        self._print(trainer, trainer.run_state.server.round)

    def _print(self, federation: RunView, rounds: int) -> None:
        if self.account is not None:
            federation.fabric.print(self.account.describe(rounds), flush=True)
