from __future__ import annotations

import io
import re

from fedvlp.tools.sweep import Status, Sweep, SweepMethod, SweepProgress, all_runs

SWEEP = Sweep((), (SweepMethod("trip", "trip"), SweepMethod("plan", "plan")), "all", (0, 1))
RUNS = all_runs(SWEEP, {"trip": ["ink", "art"], "plan": []})


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def statuses() -> dict[str, Status]:
    """Two runs have ended, one runs, all others wait."""
    found = {run.name: Status("waiting") for run in RUNS}
    return found | {
        RUNS[0].name: Status("done", 100.0),
        RUNS[1].name: Status("failed", 1.0, "Traceback (most recent\nOSError: no"),
        RUNS[2].name: Status("running"),
    }


def test_the_table_counts_runs():
    lines = SweepProgress(RUNS, statuses(), 2, io.StringIO()).table().splitlines()
    assert [re.split(r"\s{2,}", line.strip()) for line in lines[:1] + lines[2:4]] == [
        ["runs done", "ink", "art", "all domains seen"],
        ["trip", "1/2", "0/2, 1 failed", "0/0"],
        ["plan", "0/0", "0/0", "0/2, 1 running"],
    ]
    assert lines[4].startswith("1/6, 1 running, 1 failed in all, 0:00:0")


def test_a_line_for_each_run_where_there_is_no_terminal():
    stream = io.StringIO()
    progress = SweepProgress(RUNS, statuses(), 2, stream)
    progress.redraw()
    for run in RUNS[2], RUNS[1], RUNS[0]:
        progress.changed(run, progress.statuses[run.name])
    failed, done = stream.getvalue().splitlines()
    assert failed.startswith("2/6 trip, held out art, seed 0: failed: OSError: no, 0:00:01, ")
    assert done.startswith("2/6 trip, held out ink, seed 0: done, 0:01:40, ")
    assert done.endswith("about 0:03:20 left"), "4 runs of 100 seconds are open, and two run at a time"


def test_the_table_is_drawn_in_its_own_place():
    stream = Terminal()
    progress = SweepProgress(RUNS, statuses(), 2, stream)
    progress.redraw()
    progress.changed(RUNS[0], progress.statuses[RUNS[0].name])
    assert stream.getvalue().count("runs done") == 2
    assert stream.getvalue().count("\x1b[5F\x1b[J") == 1
