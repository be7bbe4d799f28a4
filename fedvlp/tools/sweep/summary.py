"""What a sweep prints at its end: times, what the cached features saved, and which runs failed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedvlp.tools.sweep.job import Job, headline
from fedvlp.tools.sweep.plan import Run
from fedvlp.tools.sweep.progress import clock, describe
from fedvlp.tools.sweep.state import SweepFile


def print_summary(runs: Sequence[Run], jobs: Mapping[str, Job], file: SweepFile, output: Path) -> int:
    """Prints what became of the runs, and the command of their table.

    Args:
        runs: all of the sweep.
        jobs: each run's job, by its name.
        file: their states.
        output: the sweep's folder.

    Returns:
        The exit code: 1 if a run failed.
    """
    done = [jobs[run.name] for run in runs if file.statuses[run.name].state == "done"]
    failed = [run for run in runs if file.statuses[run.name].state == "failed"]
    sys.stdout.write(
        f"{len(done)} of {len(runs)} runs done in {clock(file.seconds)}, all calls together\n"
        f"{_feature_times(done)}\n"
        f"table: fedvlp compare {shlex.quote(str(output))}\n"
    )
    for run in failed:
        error = headline(file.statuses[run.name].error)
        sys.stderr.write(f"failed: {describe(run)}: {error}\n  {jobs[run.name].log}\n")
    return 1 if failed else 0


def _feature_times(done: Sequence[Job]) -> str:
    """Returns how long image features were computed, and how long they would have been without the cache."""
    features = [job.summary.get("features", {}) for job in done]
    computed = sum(of_run.get("computed_seconds", 0.0) for of_run in features)
    saved = sum(of_run.get("saved_seconds", 0.0) for of_run in features)
    share = f"{100 * saved / (computed + saved):.0f} %" if computed + saved else "nothing"
    return f"image features: {computed:.1f} s to compute, {saved:.1f} s saved by the cache ({share})"
