"""Where a run stands, from its events: running, finished, ended by an error, or dead without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from fedvlp.runs.events import FILE, read_events
from fedvlp.runs.leftovers import is_claimed
from fedvlp.utils.errors import UserError

RunStage = Literal["running", "finished", "failed", "dead"]


@dataclass
class RunStatus:
    """Where a run stands.

    Attributes:
        run: its folder.
        stage: ``running`` while a process trains it; ``finished``; ``failed`` by an error or an interruption; ``dead``
            if its process ended without a word, as when it is killed.
        round: number of finished rounds.
        rounds: number of all rounds.
        process: number of the process that trains or trained it.
        machine: where that is or was.
        error: what ended it, in a line; empty if nothing did.
        counts: how often clients failed or were left out and trained in a second try, and how often the run was begun,
            by the event's name.
        last_left_out: the last client that was left out, with round and reason; None if none was.
        round_ended: what was noted of the last finished round: seconds, and accuracies in percent.
        checkpoint: the newest checkpoint; None before the first.
        last_event: when something was noted last, in UTC.
    """

    run: Path
    stage: RunStage = "dead"
    round: int = 0
    rounds: int = 0
    process: int = 0
    machine: str = ""
    error: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    last_left_out: Mapping[str, Any] | None = None
    round_ended: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Path | None = None
    last_event: datetime | None = None

    def seconds_silent(self) -> float:
        """Returns how long ago something was noted last, in seconds."""
        return (datetime.now(timezone.utc) - self.last_event).total_seconds() if self.last_event else 0.0


def find_run(where: Path) -> Path:
    """Returns a run's folder: the folder itself, or the newest run below it.

    Raises:
        UserError: if there is none.
    """
    if (where / FILE).is_file():
        return where
    found = [path.parent for path in (*where.glob(f"*/{FILE}"), *where.glob(f"*/*/{FILE}"))]
    if not found:
        raise UserError(f"No run at {where}. Pass the folder of a run, or one with runs in it.")
    return max(found, key=lambda run: (run / FILE).stat().st_mtime)


def read_status(run: Path) -> RunStatus:
    """Returns where a run stands.

    Args:
        run: its folder.

    Raises:
        UserError: if nothing is known of it, or its events can't be read.
    """
    status = RunStatus(run)
    for event in read_events(run):
        try:
            _note(status, event)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{run / FILE} has an event that is not one of a run's. Is it of another version?"
            ) from error
    if status.stage == "running" and not is_claimed(run):
        status.stage = "dead"
    return status


def _note(status: RunStatus, event: Mapping[str, Any]) -> None:
    """Takes up one event."""
    name = event["event"]
    status.counts[name] += 1
    status.last_event = datetime.fromisoformat(event["time"])
    if name == "fit_started":
        status.stage = "running"
        status.error = ""
        status.round = int(event["after_round"])
        status.rounds = int(event["rounds"])
        status.process = int(event["process"])
        status.machine = str(event["machine"])
    elif name == "client_left_out":
        status.last_left_out = event
    elif name == "round_ended":
        status.round = int(event["round"])
        status.round_ended = event
    elif name == "checkpoint":
        status.checkpoint = status.run / "checkpoints" / Path(str(event["file"])).name
    elif name == "fit_ended":
        status.stage = "finished"
    elif name == "fit_failed":
        status.stage = "failed"
        status.error = f"{event['error']}: {event['message']}".removesuffix(": ")
