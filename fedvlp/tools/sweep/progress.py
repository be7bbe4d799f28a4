"""What a sweep shows while it runs: one table on a terminal, one line for each finished run elsewhere."""

from __future__ import annotations

import shutil
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Protocol, runtime_checkable

from fedvlp.tools.sweep.job import headline
from fedvlp.tools.sweep.plan import Run
from fedvlp.tools.sweep.state import Status
from fedvlp.utils.text_table import text_table

CLEAR = "\x1b[J"


@runtime_checkable
class Stream(Protocol):
    """Where text is shown, such as ``sys.stdout``."""

    def write(self, text: str, /) -> object:
        """Shows text."""

    def flush(self) -> None:
        """Shows what was written so far."""

    def isatty(self) -> bool:
        """Returns whether it is a terminal, on which text can be drawn over."""


class SweepProgress:
    """Shows how far the runs are.

    Args:
        runs: all of the sweep.
        statuses: what became of each, by its name; looked at anew each time.
        workers: how many run at a time.
        stream: where to show it.
    """

    def __init__(self, runs: Sequence[Run], statuses: Mapping[str, Status], workers: int, stream: Stream) -> None:
        self.runs = runs
        self.statuses = statuses
        self.workers = workers
        self.stream = stream
        self.began = time.monotonic()
        self.seconds: dict[str, list[float]] = {}
        self.lines = 0

    def changed(self, run: Run, status: Status) -> None:
        """Takes note of a run's new state, which is already among the statuses."""
        if status.state == "done" and status.seconds is not None:
            self.seconds.setdefault(run.method.label, []).append(status.seconds)
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
        states: dict[str, dict[str | None, list[str]]] = {}
        for run in self.runs:
            of_method = states.setdefault(run.method.label, {column: [] for column in columns})
            of_method[run.held_out].append(self.statuses[run.name].state)
        head = ["runs done", *(column or "all domains seen" for column in columns)]
        body = [[label, *map(cell, of_method.values())] for label, of_method in states.items()]
        total = cell([self.statuses[run.name].state for run in self.runs])
        return f"{text_table([head, *body])}\n{total} in all, {self._time()}"

    def _time(self) -> str:
        """Returns how long this took, and about how long the rest will take, once a run has ended."""
        elapsed = f"{clock(time.monotonic() - self.began)} elapsed"
        if not self.seconds:
            return elapsed
        mean_of_all = statistics.mean(chain.from_iterable(self.seconds.values()))
        open_runs = [run for run in self.runs if self.statuses[run.name].state in ("waiting", "running", "interrupted")]
        left = (
            sum(statistics.mean(self.seconds.get(run.method.label, [mean_of_all])) for run in open_runs) / self.workers
        )
        return f"{elapsed}, about {clock(left)} left"


def describe(run: Run) -> str:
    """Returns a run's method, held-out domain and seed."""
    domain = "all domains seen" if run.held_out is None else f"held out {run.held_out}"
    return f"{run.method.label}, {domain}, seed {run.seed}"


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
