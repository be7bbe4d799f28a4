"""The command ``fedvlp status``: whether a run is running, finished or dead, how far it is, and how to resume it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvlp.core.roles import ROLES
from fedvlp.runs.events import RunStatus, find_run, read_status
from fedvlp.utils.errors import escape_control_chars

STAGES = {
    "running": "running",
    "finished": "finished",
    "failed": "ended by an error",
    "dead": "dead: its process was killed",
}


def run_status(arguments: Sequence[str]) -> int:
    """Prints the status of a run; returns the exit code: 0 if it is running or finished, else 1.

    Raises:
        UserError: if there is no run.
    """
    parser = argparse.ArgumentParser(
        "fedvlp status",
        description="Show a run's status: rounds, clients that failed, accuracies, how it ended, how to resume it.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or one with runs, of which the newest")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    status = read_status(find_run(options.run))
    if options.format == "json":
        sys.stdout.write(json.dumps(_values(status), indent=2, default=str) + "\n")
    else:
        text = "".join(f"{name:<11}{value}\n" for name, value in _lines(status).items())
        sys.stdout.write(escape_control_chars(text))
    return 0 if status.stage in ("running", "finished") else 1


def _values(status: RunStatus) -> dict[str, Any]:
    return {
        "run": status.run,
        "stage": status.stage,
        "error": status.error,
        "round": status.round,
        "rounds": status.rounds,
        "process": status.process,
        "machine": status.machine,
        "seconds_silent": round(status.seconds_silent(), 1),
        "begun": status.counts["fit_started"],
        "clients_left_out": status.counts["client_left_out"],
        "clients_retried": status.counts["client_retried"],
        "last_left_out": status.last_left_out,
        "last_round": status.round_ended,
        "checkpoint": status.checkpoint,
    }


def _lines(status: RunStatus) -> dict[str, str]:
    """Returns the lines for readers, by what each begins with."""
    stage = STAGES[status.stage]
    if status.stage == "running":
        silent = f"last event {status.seconds_silent():.0f} s ago"
        stage = f"running (process {status.process} on {status.machine}), {silent}"
    counts = status.counts
    lines = {
        "run": str(status.run),
        "state": f"{stage}: {status.error}" if status.error else stage,
        "rounds": f"{status.round} of {status.rounds}{_time_left(status)}",
        "clients": f"left out {counts['client_left_out']} times, trained again {counts['client_retried']} times",
    }
    ended = status.round_ended
    if accuracies := [f"{title} {ended[role]:.1f} %" for role, title in ROLES.items() if role in ended]:
        lines["accuracy"] = ", ".join(accuracies)
    if (last := status.last_left_out) is not None:
        lines["last out"] = f"round {last['round']}, client {last['name'] or last['client']}: {last['reason']}"
    if status.checkpoint is not None:
        lines["checkpoint"] = str(status.checkpoint)
    if status.stage in ("failed", "dead"):
        is_of_sites = (status.run / "sites.json").exists()
        command = f"fedvlp fit --config {status.run / 'config.yaml'} --ckpt_path {status.run}"
        lines["resume"] = "start the sites' server again with ckpt_path last" if is_of_sites else command
    return lines


def _time_left(status: RunStatus) -> str:
    seconds = status.round_ended.get("seconds")
    if seconds is None:
        return ""
    text = f", the last in {seconds:.1f} s"
    left = seconds * (status.rounds - status.round)
    return f"{text}, about {left:.0f} s left" if status.stage == "running" else text
