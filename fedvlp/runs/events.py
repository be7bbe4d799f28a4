"""``events.jsonl``, a log of a run with one JSON object per line, and the status derived from it."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fedvlp.runs.run_folder import is_claimed
from fedvlp.utils.errors import UserError

FILE = "events.jsonl"


def append_events(run: Path, events: Iterable[Mapping[str, Any]]) -> None:
    """Append events to a run's file, each with the time in UTC; an OSError contains the path."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    text = "".join(json.dumps({"time": now, **event}) + "\n" for event in events)
    path = run / FILE
    try:
        with open(path, "a+b") as file:
            # Terminate an incomplete line of a killed process, so that it does not corrupt the next event.
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            file.write((text if file.read() in (b"", b"\n") else f"\n{text}").encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_events(run: Path) -> Iterator[dict[str, Any]]:
    """Yield a run's events, with ``event`` and ``time``, and skip damaged lines; raise UserError without a file."""
    path = run / FILE
    if not path.is_file():
        raise UserError(f"{path} is missing. Pass the folder of a run.")
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # an incomplete line
            continue
        yield event


def find_run(where: Path) -> Path:
    """Find a run: the folder itself, or the newest run below it; raise UserError if there is none."""
    if (where / FILE).is_file():
        return where
    runs = [path.parent for path in (*where.glob(f"*/{FILE}"), *where.glob(f"*/*/{FILE}"))]
    if not runs:
        raise UserError(f"No run at {where}. Pass a run folder, or a folder of runs.")
    return max(runs, key=lambda run: (run / FILE).stat().st_mtime)


def read_status(run: Path) -> dict[str, Any]:
    """Describe the status of a run, in JSON values and paths.

    ``stage`` is ``running`` while a process trains the run, ``finished``, ``failed`` by an exception that is in
    ``error``, or ``dead`` if the process was killed. ``last_round`` is the event of the last finished round, with its
    seconds, and accuracies in percent. ``score`` is their name.
    """
    events = list(read_events(run))
    last = {event["event"]: event for event in events}
    counts = Counter(event["event"] for event in events)
    # A resumed run has another start event, with the round of its checkpoint.
    state = [event for event in events if event["event"] in ("fit_started", "fit_ended", "fit_failed")][-1]
    progress = [event for event in events if event["event"] in ("fit_started", "round_ended")][-1]
    started = last["fit_started"]
    checkpoint = last.get("checkpoint")
    skipped = last.get("client_left_out")
    stages = {"fit_started": "running" if is_claimed(run) else "dead", "fit_ended": "finished", "fit_failed": "failed"}
    silent = datetime.now(timezone.utc) - datetime.fromisoformat(events[-1]["time"])
    return {
        "run": run,
        "stage": stages[state["event"]],
        "error": ": ".join(filter(None, [state.get("error"), state.get("message")])),
        "round": progress["round"] if "round" in progress else progress["after_round"],
        "rounds": started["rounds"],
        "process": started["process"],
        "machine": started["machine"],
        "seconds_silent": round(silent.total_seconds(), 1),
        "begun": counts["fit_started"],
        "rounds_lost": sum(event["event"] == "round_ended" and "lost" in event for event in events),
        "clients_left_out": counts["client_left_out"],
        "clients_retried": counts["client_retried"],
        "last_left_out": skipped and {"round": "", "name": "", "client": "", "reason": "", **skipped},
        "score": started.get("score", "accuracy"),
        "last_round": last.get("round_ended", {}),
        "checkpoint": run / "checkpoints" / Path(checkpoint["file"]).name if checkpoint else None,
    }
