"""What a sweep shows while it runs: one table on a terminal, one line for each finished run elsewhere."""

from __future__ import annotations

import shutil
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TextIO

from fedvlp.sweep.job import headline
from fedvlp.sweep.plan import Run
from fedvlp.sweep.state import Status
from fedvlp.utils.text_table import text_table

CLEAR = "\x1b[J"


class Progress:
    """Shows how far the runs are.

    Args:
        runs: all of the sweep.
        statuses: what became of each, by its name; looked at anew each time.
        workers: how many run at a time.
        stream: where to show it.
    """

    def __init__(self, runs: Sequence[Run], statuses: Mapping[str, Status], workers: int, stream: TextIO) -> None:
        self.runs, self.statuses, self.workers, self.stream = runs, statuses, workers, stream
        self.began = time.monotonic()
        self.took: dict[str, list[float]] = {}
        self.lines = 0

    def changed(self, run: Run, status: Status) -> None:
        """Takes note of a run's new state, which is already among the statuses."""
        if status.state == "done" and status.seconds is not None:
            self.took.setdefault(run.row.label, []).append(status.seconds)
        if self.stream.isatty():
            self.redraw()
        elif status.state in ("done", "failed", "interrupted"):
            ended = sum(self.statuses[other.name].state in ("done", "failed") for other in self.runs)
            what = f"failed: {headline(status.error)}" if status.state == "failed" else status.state
            shown = f"{describe(run)}: {what}, {clock(status.seconds or 0)}"
            self.stream.write(f"{ended}/{len(self.runs)} {shown}, {self._time()}\n")
            self.stream.flush()

    def redraw(self) -> None:
        """Draws the table in the place of the last one; nothing where the output is no terminal."""
        if not self.stream.isatty():
            return
        columns, rows = shutil.get_terminal_size()
        lines = [line[: columns - 1] for line in self.table().splitlines()][: rows - 1]
        back = f"\x1b[{self.lines}F" if self.lines else ""
        self.stream.write(back + CLEAR + "".join(f"{line}\n" for line in lines))
        self.stream.flush()
        self.lines = len(lines)

    def table(self) -> str:
        """Returns methods by held-out domains, with how many runs of each have ended, and the time."""
        columns = list(dict.fromkeys(run.held_out for run in self.runs))
        states: dict[tuple[str, str | None], list[str]] = {}
        for run in self.runs:
            states.setdefault((run.row.label, run.held_out), []).append(self.statuses[run.name].state)
        labels = list(dict.fromkeys(run.row.label for run in self.runs))
        head = ["runs done", *(column or "all domains seen" for column in columns)]
        body = [[label, *(cell(states.get((label, column), [])) for column in columns)] for label in labels]
        total = cell([status for values in states.values() for status in values])
        return f"{text_table([head, *body])}\n{total} in all, {self._time()}"

    def _time(self) -> str:
        """Returns how long this took, and about how long the rest will take, once a run has ended."""
        elapsed = f"{clock(time.monotonic() - self.began)} elapsed"
        if not self.took:
            return elapsed
        every = statistics.mean(seconds for of_row in self.took.values() for seconds in of_row)
        open_runs = [run for run in self.runs if self.statuses[run.name].state in ("waiting", "running", "interrupted")]
        left = sum(statistics.mean(self.took.get(run.row.label, [every])) for run in open_runs) / self.workers
        return f"{elapsed}, about {clock(left)} left"


def describe(run: Run) -> str:
    """Returns a run's method, held-out domain and seed."""
    domain = "all domains seen" if run.held_out is None else f"held out {run.held_out}"
    return f"{run.row.label}, {domain}, seed {run.seed}"


def cell(states: Sequence[str]) -> str:
    """Returns how many runs are done, and how many run, failed or were interrupted, if any.

    >>> cell(["done", "running", "waiting"]), cell(["failed"])
    ('1/3, 1 running', '0/1, 1 failed')
    """
    counts = Counter(states)
    parts = [f"{counts['done']}/{len(states)}"]
    parts += [f"{counts[state]} {state}" for state in ("running", "failed", "interrupted") if counts[state]]
    return ", ".join(parts)


def clock(seconds: float) -> str:
    """Returns a time as hours, minutes and seconds.

    >>> clock(3725.4)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
