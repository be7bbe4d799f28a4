"""The command ``fedvlp status``: shows the state of a run, its progress, and how to resume it."""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlp.results.record import SWEEP_FILE
from fedvlp.results.rounds import list_means
from fedvlp.runs.events import FILE, find_run, read_status
from fedvlp.runs.run_folder import WAITING
from fedvlp.utils.errors import escape_control_chars
from fedvlp.utils.text_table import text_table

STAGES = {
    "running": "running (process {process} on {machine}), last event {seconds_silent:.0f} s ago",
    "finished": "finished",
    "failed": "ended by an error: {error}",
    "dead": "dead: its process was killed",
}

SECONDS_TO_WAIT = 60.0  # after the last message of a server that waits for sites; it reports every second


def run_status(arguments: Sequence[str]) -> int:
    """Print the status of a run, or of each run of a sweep; return 0 if all are running or finished, otherwise 1."""
    parser = argparse.ArgumentParser(
        "fedvlp status",
        description="Show a run's status: rounds, failed clients, accuracies, how it ended, and how to resume it.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, of a sweep, or of runs (the newest)")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    waiting = options.run / WAITING
    if waiting.is_file() and time.time() - waiting.stat().st_mtime < SECONDS_TO_WAIT:
        text = escape_control_chars(waiting.read_text(encoding="utf-8", errors="replace"))
        sys.stdout.write(f"waiting    {text}\n" if options.format == "text" else json.dumps({"waiting": text}) + "\n")
        return 0
    is_sweep = (options.run / SWEEP_FILE).is_file()
    # The last attempt at each run, in folders named after the time.
    attempts = {path.parent.parent: path.parent for path in sorted(options.run.glob(f"*/*/*/{FILE}"))}
    found = [read_status(run) for run in (attempts.values() if is_sweep else [find_run(options.run)])]
    if options.format == "json":
        sys.stdout.write(json.dumps(found if is_sweep else found[0], indent=2, default=str) + "\n")
    else:
        text = _table(found) if is_sweep else "".join(f"{name:<11}{value}\n" for name, value in _lines(*found).items())
        # Names of clients and errors may contain control characters.
        sys.stdout.write(escape_control_chars(text))
    return 0 if all(status["stage"] in ("running", "finished") for status in found) else 1


def _table(found: Sequence[Mapping[str, Any]]) -> str:
    # All runs of a sweep have the same data.
    rows = [["run", "state", "rounds", *({status["score"] for status in found} or {"accuracy"})]]
    for status in found:
        lines = _lines(status)
        rows.append([lines["run"], lines["state"], lines["rounds"], lines.get(status["score"], "-")])
    return text_table(rows, text_columns=4) + "\n"


def _lines(status: Mapping[str, Any]) -> dict[str, str]:
    lines = {
        "run": str(status["run"]),
        "state": STAGES[status["stage"]].format_map(status),
        "rounds": f"{status['round']} of {status['rounds']}{_time_left(status)}",
        "clients": f"skipped {status['clients_left_out']} times, retried {status['clients_retried']} times",
    }
    if status["rounds_lost"]:
        lines["lost"] = f"{status['rounds_lost']} rounds without a secure sum, which changed nothing"
    if accuracies := list_means(status["last_round"]):
        lines[status["score"]] = ", ".join(accuracies)
    if (last := status["last_left_out"]) is not None:
        lines["skipped"] = f"round {last['round']}, client {last['name'] or last['client']}: {last['reason']}"
    if status["checkpoint"] is not None:
        lines["checkpoint"] = str(status["checkpoint"])
    if status["stage"] in ("failed", "dead"):
        run = status["run"]
        lines["resume"] = f"fedvlp fit --config {run / 'config.yaml'} --ckpt_path {run}"
        if (run / "sites.json").exists():
            lines["resume"] = "start the sites' server again with ckpt_path last"
    return lines


def _time_left(status: Mapping[str, Any]) -> str:
    seconds = status["last_round"].get("seconds")
    if seconds is None:
        return ""
    left = seconds * (status["rounds"] - status["round"])
    text = f", the last in {seconds:.1f} s"
    return f"{text}, about {left:.0f} s left" if status["stage"] == "running" else text
