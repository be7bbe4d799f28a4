"""What stands in for training in the tests of sweeps: functions that a new process finds by their names."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

from fedvlp.tools.sweep import Job, Status, run_jobs, runner


def train(arguments: Sequence[str]) -> int:
    """Does what the first word says with the folder that is the second; each attempt leaves a line in ``attempts``."""
    what = arguments[0]
    folder = Path(arguments[1])
    with (folder / "attempts").open("a") as file:
        file.write(f"{os.getpid()}\n")
    sys.stdout.write(f"{what} on {os.environ.get('CUDA_VISIBLE_DEVICES')} with {os.environ['OMP_NUM_THREADS']}\n")
    if what == "wait":
        if len(attempts(folder)) == 1:
            time.sleep(600)
        what = "end"
    if what == "end":
        finish(folder)
    elif what == "raise":
        raise ValueError("no such luck")
    elif what == "refuse":
        sys.stderr.write("fedvlp: error: a bad root\nand more of it\n")
        return 1
    elif what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


def attempts(folder: Path) -> list[int]:
    """Returns the processes that made the run."""
    path = folder / "attempts"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def finish(folder: Path) -> None:
    """Writes what a run that has ended leaves behind."""
    (folder / "2020-01-01").mkdir()
    (folder / "2020-01-01" / "summary.json").write_text("{}")


def make(jobs: Sequence[Job], states: Path) -> None:
    """Makes runs in a process of its own and writes down their states; it forks, having imported all already."""

    def report(job: Job, status: Status) -> None:
        with states.open("a") as file:
            file.write(f"{job.name} {status.state}\n")

    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests themselves run in the background
    with patch.object(runner, "get_context", lambda _: get_context("fork")):
        run_jobs(jobs, 2, train, report)
