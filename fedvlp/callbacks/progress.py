"""Progress of a run: a live bar and one final line per round, and a log file of events."""

import os
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fedvlp.core.phases import Phase
from fedvlp.core.predictions import LABEL_SCORES
from fedvlp.core.roles import ROLES
from fedvlp.core.state import Client, ClientUpdate, ServerState
from fedvlp.results.rounds import list_means
from fedvlp.runs.events import append_events
from fedvlp.runs.run_folder import checkpoint_file
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.training.task import PhaseTask
from fedvlp.version import __version__


class ProgressBar(FederationCallback):
    """Live bar with client, loss and progress of a round, and a line with accuracies and time at its end."""

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.bar: Any = tqdm(disable=True)
        self.last_update = 0.0

    def on_round_start(self, federation: RunView, phases: Sequence[Phase], cohort: Sequence[Client]) -> None:
        """Open the bar."""
        hidden = not (self.enabled and federation.is_global_zero and sys.stderr.isatty())
        batch_size = getattr(federation.data, "batch_size", 1)
        # The bar counts steps, because clients differ in their number of images, but steps take about equal time.
        steps = sum(federation.options.local.num_steps(client, batch_size) for client in cohort)
        title = f"round {federation.run_state.server.round + 1}/{federation.options.rounds}"
        self.bar = tqdm(total=steps * len(phases), desc=title, unit="step", disable=hidden, leave=False)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Advance the bar by one step."""
        self.bar.update()
        now = time.monotonic()
        # Reading a loss waits for the GPU, so at most five losses are read per second.
        if not self.bar.disable and now - self.last_update > 0.2:
            self.bar.set_postfix_str(f"{outputs['client'].name}, loss {outputs['loss'].item():.3f}")
            self.last_update = now

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the bar."""
        self.bar.close()

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Print the results of the round."""
        history = federation.run_state.history
        rounds_left = federation.options.rounds - row["round"]
        # Average over all rounds, because rounds with evaluation take longer.
        seconds_left = rounds_left * sum(past["seconds"] for past in history) / len(history)
        title = f"round {row['round']}/{federation.options.rounds}"
        time_left = f"{row['seconds']:.1f} s, {seconds_left:.0f} s left"
        federation.fabric.print(" · ".join([title, *list_means(row), time_left]), flush=True)


class EventLog(FederationCallback):
    """Writer of ``events.jsonl``: rounds, clients, phases, rejections, retries, checkpoints and the end of the run.

    ``fedvlp status`` reads the file, also during the run.
    """

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Log the start or resumption of the run: its process, machine and last finished round."""
        federation: RunView = trainer
        self._write(
            federation,
            "fit_started",
            after_round=federation.run_state.server.round,
            rounds=federation.options.rounds,
            clients=[client.name or str(client.id) for client in federation.data.clients],
            **({"score": LABEL_SCORES["accuracy"]} if federation.has_several_labels else {}),
            process=os.getpid(),
            machine=platform.node(),
            version=__version__,
        )

    def on_round_start(self, federation: RunView, phases: Sequence[Phase], cohort: Sequence[Client]) -> None:
        """Log the cohort."""
        number = federation.run_state.server.round + 1
        self._write(federation, "round_started", round=number, cohort=[client.id for client in cohort])

    def on_client_problem(
        self, federation: RunView, phase: Phase, client: Client, reason: str, is_skipped: bool
    ) -> None:
        """Record which client is left out for the rest of the round, or needed a second try, and why."""
        event = "client_left_out" if is_skipped else "client_retried"
        about = {"client": client.id, "name": client.name, "reason": reason}
        self._write(federation, event, **_round_and_phase(federation, phase), **about)

    def on_phase_end(
        self, federation: RunView, task: PhaseTask, server: ServerState, updates: Sequence[ClientUpdate]
    ) -> None:
        """Log the clients that trained, with their numbers of images, and the end of the aggregation."""
        location = _round_and_phase(federation, task.phase)
        # Write all events of a phase at once, so that 10,000 clients do not open the file 10,000 times.
        trained = [
            {"event": "client_trained", **location, "client": update.client.id, "num_examples": update.num_examples}
            for update in updates
        ]
        self._append(federation, [*trained, {"event": "phase_ended", **location, "uploads": len(updates)}])

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Log the accuracies of the round in percent, its time, and the checkpoint."""
        shown = {name: row[name] for name in ("seconds", "lost", *ROLES) if name in row}
        self._write(federation, "round_ended", round=row["round"], **shown)
        checkpoint = checkpoint_file(Path(federation.log_dir), row["round"])
        if checkpoint.is_file():
            self._write(federation, "checkpoint", round=row["round"], file=checkpoint.name)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the end of the run."""
        federation: RunView = trainer
        self._write(federation, "fit_ended", after_round=federation.run_state.server.round)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Log the exception that ended the run, unless the disk is full."""
        federation: RunView = trainer
        # Only the first line, for tables of events; the terminal shows the traceback.
        first_line = str(exception).strip().split("\n")[0]
        about = {"error": type(exception).__name__, "message": first_line}
        with suppress(OSError):
            self._write(federation, "fit_failed", after_round=federation.run_state.server.round, **about)

    def _write(self, federation: RunView, event: str, **values: Any) -> None:
        self._append(federation, [{"event": event, **values}])

    def _append(self, federation: RunView, events: Sequence[dict[str, Any]]) -> None:
        if federation.is_global_zero:
            append_events(Path(federation.log_dir), events)


def _round_and_phase(federation: RunView, phase: Phase) -> dict[str, Any]:
    return {"round": federation.run_state.server.round + 1, "phase": phase.name}
