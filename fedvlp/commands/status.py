"""The command ``fedvlp status``: where a run stands, whether it is running, finished or dead."""

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

WORDS = {
    "running": "running",
    "finished": "finished",
    "failed": "ended by an error",
    "dead": "dead: its process ended without a word",
}


def run_status(arguments: Sequence[str]) -> int:
    """Prints where a run stands; returns the exit code: 0 if it is running or finished, else 1.

    Raises:
        UserError: if there is no run.
    """
    parser = argparse.ArgumentParser(
        "fedvlp status",
        description="Say where a run stands: rounds, clients that failed, accuracies, how it ended, how to go on.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or one with runs, of which the newest")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    status = read_status(find_run(options.run))
    values = _values(status)
    if options.format == "json":
        sys.stdout.write(json.dumps(values, indent=2, default=str) + "\n")
    else:
        sys.stdout.writelines(
            f"{name:<11}{escape_control_chars(str(value))}\n" for name, value in _lines(status, values).items()
        )
    return 0 if status.stage in ("running", "finished") else 1


def _values(status: RunStatus) -> dict[str, Any]:
    """Returns what is known, for programs."""
    return {
        "run": str(status.run),
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
        "checkpoint": None if status.checkpoint is None else str(status.checkpoint),
    }


def _lines(status: RunStatus, values: dict[str, Any]) -> dict[str, str]:
    """Returns what is known, for readers, by the first word of the line."""
    stage = WORDS[status.stage]
    if status.stage == "running":
        stage += f" (process {status.process} on {status.machine}), last event {values['seconds_silent']:.0f} s ago"
    lines = {"run": values["run"], "state": f"{stage}: {status.error}" if status.error else stage}
    lines["rounds"] = f"{status.round} of {status.rounds}{_time_left(status)}"
    accuracies = [
        f"{title} {status.round_ended[role]:.1f} %" for role, title in ROLES.items() if role in status.round_ended
    ]
    if accuracies:
        lines["accuracy"] = ", ".join(accuracies)
    lines["clients"] = f"left out {values['clients_left_out']} times, trained again {values['clients_retried']} times"
    if (last := status.last_left_out) is not None:
        lines["last out"] = f"round {last['round']}, client {last['name'] or last['client']}: {last['reason']}"
    if status.checkpoint is not None:
        lines["checkpoint"] = str(status.checkpoint)
    if status.stage in ("failed", "dead"):
        lines["go on"] = _how_to_go_on(status.run)
    return lines


def _how_to_go_on(run: Path) -> str:
    """Returns what continues a run: a command, or for a run of sites their server."""
    if (run / "sites.json").exists():
        return "start the sites' server again with ckpt_path last"
    return f"fedvlp fit --config {run / 'config.yaml'} --ckpt_path {run}"


def _time_left(status: RunStatus) -> str:
    """Returns how long the last round took, and how long the others will take."""
    seconds = status.round_ended.get("seconds")
    if seconds is None:
        return ""
    text = f", the last in {seconds:.1f} s"
    if status.stage != "running":
        return text
    return f"{text}, about {seconds * (status.rounds - status.round):.0f} s left"
