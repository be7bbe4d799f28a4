"""``events.jsonl`` of a run, one JSON object a line written as it happens, and the status that follows from it."""

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
    """Add events to a run's file, each with the time in UTC; an OSError names the file."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    text = "".join(json.dumps({"time": now, **event}) + "\n" for event in events)
    path = run / FILE
    try:
        with open(path, "a+b") as file:
            # What a killed process left of a line is closed, so that it does not swallow the first event of this one.
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            file.write((text if file.read() in (b"", b"\n") else f"\n{text}").encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_events(run: Path) -> Iterator[dict[str, Any]]:
    """Yield a run's events, each with ``event`` and ``time``, but no damaged lines; raise UserError without a file."""
    path = run / FILE
    if not path.is_file():
        raise UserError(f"{path} is missing, so there is no run. Pass the folder of a run.")
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # the line is being written, or was never ended
            continue
        yield event


def find_run(where: Path) -> Path:
    """Find a run's folder: the folder itself, or the newest run below it; raise UserError if there is none."""
    if (where / FILE).is_file():
        return where
    runs = [path.parent for path in (*where.glob(f"*/{FILE}"), *where.glob(f"*/*/{FILE}"))]
    if not runs:
        raise UserError(f"No run at {where}. Pass the folder of a run, or one with runs in it.")
    return max(runs, key=lambda run: (run / FILE).stat().st_mtime)


def read_status(run: Path) -> dict[str, Any]:
    """Describe the status of a run, in values that JSON can hold but for paths.

    ``stage`` is ``running`` while a process trains it; ``finished``; ``failed`` by an error or an interruption, which
    is in ``error``; ``dead`` if its process ended without a word, as when it is killed. ``last_round`` is the event of
    the last finished round, with its seconds, and accuracies in percent.
    """
    events = list(read_events(run))
    last = {event["event"]: event for event in events}
    counts = Counter(event["event"] for event in events)
    # A resumed run starts again, and counts its rounds from the checkpoint that it resumed from.
    state = [event for event in events if event["event"] in ("fit_started", "fit_ended", "fit_failed")][-1]
    progress = [event for event in events if event["event"] in ("fit_started", "round_ended")][-1]
    started = last["fit_started"]
    checkpoint = last.get("checkpoint")
    left_out = last.get("client_left_out")
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
        "last_left_out": left_out and {"round": "", "name": "", "client": "", "reason": "", **left_out},
        "last_round": last.get("round_ended", {}),
        "checkpoint": run / "checkpoints" / Path(checkpoint["file"]).name if checkpoint else None,
    }
