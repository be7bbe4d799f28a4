"""The states of a sweep's runs: a printed line for each one that ends, and all of them in ``sweep.json``."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedvlp.results.record import SWEEP_FILE
from fedvlp.tools.sweep.jobs import Job, Status
from fedvlp.utils.files import write_json


class SweepProgress:
    """Prints and keeps what becomes of the runs.

    Args:
        folder: the sweep's.
        jobs: all of the sweep.
        workers: how many run at a time, for the time that is left.

    Attributes:
        statuses: the state of each run by its name; a run whose folder has a summary is done.
    """

    def __init__(self, folder: Path, jobs: Sequence[Job], workers: int) -> None:
        self.path = folder / SWEEP_FILE
        self.jobs = jobs
        self.workers = workers
        self.began = time.monotonic()
        # The file also has the runs of earlier calls in this folder that had other arguments.
        self.entries = _read_entries(self.path)
        # What a folder holds counts more than what the file says: the last call may have been killed.
        self.statuses: dict[str, Status] = {}
        for job in jobs:
            seconds = self.entries.get(job.name, {}).get("seconds")
            self.statuses[job.name] = Status("done", seconds) if job.is_done else Status("waiting")
            self._write_down(job)

    @property
    def missing(self) -> list[Job]:
        """The runs that are not done."""
        return [job for job in self.jobs if self.statuses[job.name].state != "done"]

    def report(self, job: Job, status: Status) -> None:
        """Records a run's new state, and prints a line if the run has ended."""
        self.statuses[job.name] = status
        self._write_down(job)
        self.write()
        if status.state in ("done", "failed"):
            states = [other.state for other in self.statuses.values()]
            ended = states.count("done") + states.count("failed")
            what = f"failed: {headline(status.error)}" if status.state == "failed" else "done"
            time_taken = "" if status.seconds is None else f", {clock(status.seconds)}"
            sys.stdout.write(f"{ended}/{len(self.jobs)} {job.title}: {what}{time_taken}{self._remaining()}\n")
            sys.stdout.flush()

    def write(self) -> None:
        """Writes ``sweep.json``."""
        write_json(self.path, {"runs": self.entries})

    def print_failures(self) -> int:
        """Prints which runs are not done, with the error and log of each, and returns the exit code: 1 if there are."""
        sys.stdout.write(f"{len(self.jobs) - len(self.missing)} of {len(self.jobs)} runs done\n")
        for job in self.missing:
            status = self.statuses[job.name]
            sys.stderr.write(f"{status.state}: {job.title}: {headline(status.error)}\n  {job.log}\n")
        return 1 if self.missing else 0

    def _write_down(self, job: Job) -> None:
        self.entries[job.name] = {**job.axes, **asdict(self.statuses[job.name])}

    def _remaining(self) -> str:
        """Estimates the time that is left from the runs whose time is known."""
        known = [status.seconds for status in self.statuses.values() if status.state == "done" and status.seconds]
        waiting = sum(status.state in ("waiting", "running") for status in self.statuses.values())
        elapsed = f"; {clock(time.monotonic() - self.began)} elapsed"
        if not known or not waiting:
            return elapsed
        return f"{elapsed}, about {clock(statistics.mean(known) * waiting / self.workers)} left"


def headline(error: str) -> str:
    r"""Returns the line of an error that says most.

    >>> headline("Traceback (most recent call last):\n  File ...\nValueError: no")
    'ValueError: no'
    """
    lines = error.splitlines() or [""]
    return lines[-1] if lines[0].startswith("Traceback (") else lines[0]


def clock(seconds: float) -> str:
    """Formats a time as hours, minutes and seconds.

    >>> clock(3725.4)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _read_entries(path: Path) -> dict[str, Any]:
    """Reads the runs of ``sweep.json``; none if there is no such file or it is damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["runs"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
