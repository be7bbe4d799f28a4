"""``events.jsonl`` of a run, one JSON object a line written as it happens, and the status that follows from it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from fedvlp.runs.run_folder import is_claimed
from fedvlp.utils.errors import UserError

FILE = "events.jsonl"
RunStage = Literal["running", "finished", "failed", "dead"]


def append_events(run: Path, events: Iterable[Mapping[str, Any]]) -> None:
    """Adds events to a run's file, each with the time at which they are written, in UTC.

    What a killed process left of a line is cut off first.

    Args:
        run: the run's folder.
        events: what happened, each with its name under ``event``.

    Raises:
        OSError: with the file's path, if it can't be written.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    text = "".join(json.dumps({"time": now, **event}) + "\n" for event in events)
    path = run / FILE
    try:
        with open(path, "a+b") as file:
            _cut_off_half_line(file)
            file.write(text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _cut_off_half_line(file: Any) -> None:
    """Removes what a killed process left behind the last end of a line."""
    file.seek(0)
    content = file.read()
    if not content.endswith(b"\n"):
        file.truncate(content.rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)


def read_events(run: Path) -> Iterator[dict[str, Any]]:
    """Yields a run's events; a line that is only half there, as it is just being written, is left out.

    Raises:
        UserError: if the run has none, or a line is no event.
    """
    path = run / FILE
    if not path.is_file():
        raise UserError(f"{path} is missing, so there is no run. Pass the folder of a run.")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            return
        try:
            event = json.loads(line)
            event["event"]
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"Line {number} of {path} is no event. Is it of another version?") from error
        yield event


@dataclass
class RunStatus:
    """The status of a run.

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
    runs = [path.parent for path in (*where.glob(f"*/{FILE}"), *where.glob(f"*/*/{FILE}"))]
    if not runs:
        raise UserError(f"No run at {where}. Pass the folder of a run, or one with runs in it.")
    return max(runs, key=lambda run: (run / FILE).stat().st_mtime)


def read_status(run: Path) -> RunStatus:
    """Returns the status of a run.

    Args:
        run: its folder.

    Raises:
        UserError: if it has no events, or they can't be read.
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
