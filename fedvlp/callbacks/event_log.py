"""One structured file of everything that happened in a run."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedvlp.callbacks.checkpoints import Checkpoints
from fedvlp.core.phases import Phase
from fedvlp.core.roles import ROLES
from fedvlp.core.state import Client, ClientUpdate, ServerState, State
from fedvlp.runs.events import append_events
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.version import __version__


class EventLog(FederationCallback):
    """Writes ``events.jsonl``: rounds, clients, phases, refusals, second tries, checkpoints and how the run ended.

    ``fedvlp status`` reads it, also while the run goes on.

    Args:
        checkpoints: writes the checkpoints; none if not given.
    """

    def __init__(self, checkpoints: Checkpoints | None = None) -> None:
        self.checkpoints = checkpoints

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Notes which process begins, or goes on, after which round."""
        federation: RunView = trainer
        self._write(
            federation,
            "fit_started",
            after_round=federation.run_state.server.round,
            rounds=federation.rounds,
            clients=[client.name or str(client.id) for client in federation.data.clients],
            process=os.getpid(),
            machine=platform.node(),
            version=__version__,
        )

    def on_round_start(self, federation: RunView, phases: Sequence[Phase], cohort: Sequence[Client]) -> None:
        """Notes who takes part."""
        self._write(federation, "round_started", **_round(federation), cohort=[client.id for client in cohort])

    def on_client_left_out(self, federation: RunView, phase: Phase, client: Client, reason: str) -> None:
        """Notes who does not count any more in the round, and why."""
        place = _place(federation, phase)
        self._write(federation, "client_left_out", **place, client=client.id, name=client.name, reason=reason)

    def on_client_retried(self, federation: RunView, phase: Phase, client: Client, reason: str) -> None:
        """Notes who needed a second try, and why."""
        place = _place(federation, phase)
        self._write(federation, "client_retried", **place, client=client.id, name=client.name, reason=reason)

    def on_phase_end(
        self,
        federation: RunView,
        phase: Phase,
        before: ServerState,
        server: ServerState,
        updates: Sequence[ClientUpdate],
        download: Callable[[Client], State],
    ) -> None:
        """Notes who trained, on how many images, and that the server has aggregated."""
        place = _place(federation, phase)
        trained = [
            {"event": "client_trained", **place, "client": update.client.id, "num_examples": update.num_examples}
            for update in updates
        ]
        self._append(federation, [*trained, {"event": "phase_ended", **place, "uploads": len(updates)}])

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Notes the round's accuracies in percent and its time, and the checkpoint."""
        shown = {name: row[name] for name in ("seconds", *ROLES) if name in row}
        self._write(federation, "round_ended", round=row["round"], **shown)
        if self.checkpoints is not None and self.checkpoints.newest is not None:
            self._write(federation, "checkpoint", round=row["round"], file=self.checkpoints.newest.name)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Notes that the run came to its end."""
        federation: RunView = trainer
        self._write(federation, "fit_ended", after_round=federation.run_state.server.round)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Notes what ended the run; on a disk that is full, nothing."""
        federation: RunView = trainer
        first_line = str(exception).strip().split("\n")[0]
        with suppress(OSError):
            self._write(
                federation,
                "fit_failed",
                after_round=federation.run_state.server.round,
                error=type(exception).__name__,
                message=first_line,
            )

    def _write(self, federation: RunView, event: str, **values: Any) -> None:
        self._append(federation, [{"event": event, **values}])

    def _append(self, federation: RunView, events: Sequence[dict[str, Any]]) -> None:
        if federation.is_global_zero:
            append_events(Path(federation.log_dir), events)


def _round(federation: RunView) -> dict[str, Any]:
    return {"round": federation.run_state.server.round + 1}


def _place(federation: RunView, phase: Phase) -> dict[str, Any]:
    return {**_round(federation), "phase": phase.name}
