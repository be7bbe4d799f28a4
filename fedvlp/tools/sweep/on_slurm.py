"""``fedvlp sweep --launcher slurm``: what is missing of a sweep as jobs in Slurm's queue."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fedvlp.tools.sweep import Job, QueuedJobs, Run, SlurmQueue, Status, SweepFile, SweepProgress, print_summary
from fedvlp.tools.sweep.progress import describe

GO_ON = "the same command goes on"


def make_missing_on_slurm(
    runs: Sequence[Run], jobs: Mapping[str, Job], queue: SlurmQueue, most: int | None, waits: bool
) -> int:
    """Submits the runs that are missing and not in the queue, and prints what becomes of all.

    Args:
        runs: all of the sweep.
        jobs: each run's job, by its name.
        queue: of the sweep's folder.
        most: how many are in the queue at a time; None for all.
        waits: whether to watch until all have ended.

    Returns:
        The exit code: 1 if a run did not end well, 130 if the command was stopped.

    Raises:
        UserError: if Slurm does not answer, or takes no job.
    """
    by_name = {run.name: run for run in runs}
    output = queue.path.parent
    file = SweepFile(output, list(jobs.values()), {name: run.axes for name, run in by_name.items()})
    progress = SweepProgress(runs, file.statuses, 1, sys.stdout)

    def report(job: Job, status: Status) -> None:
        file.set(job.name, status)
        running = sum(status.state == "running" for status in file.statuses.values())
        progress.workers = max(1, running)
        progress.changed(by_name[job.name], status)

    missing = [job for job in jobs.values() if file.statuses[job.name].state != "done"]
    queued = QueuedJobs(missing, queue, report, most or len(runs))
    found = f"{queued.number_found} of these in Slurm's queue already"
    sys.stdout.write(f"{len(runs)} runs in {output}, {len(missing)} of them missing, {found}\n")
    try:
        queued.begin()
        if waits:
            queued.wait(progress.redraw)
    except KeyboardInterrupt:
        sys.stderr.write(f"fedvlp: no longer watching; {GO_ON}\n{_how_to_cancel(queue, queued.stages)}")
        return 130
    finally:
        file.write()
    return _summary(runs, jobs, file, queue) if waits else _overview(file, runs, queue, queued)


def _summary(runs: Sequence[Run], jobs: Mapping[str, Job], file: SweepFile, queue: SlurmQueue) -> int:
    """Prints what became of the runs, and returns the exit code."""
    code = print_summary(runs, jobs, file, queue.path.parent)
    for run in runs:
        status = file.statuses[run.name]
        if status.state == "interrupted":
            code = 1
            sys.stderr.write(f"interrupted: {describe(run)}: {status.error} {GO_ON.capitalize()} with it.\n")
            sys.stderr.write(f"  {jobs[run.name].log}\n")
    return code


def _overview(file: SweepFile, runs: Sequence[Run], queue: SlurmQueue, queued: QueuedJobs) -> int:
    """Prints how many runs are in which state, and returns the exit code."""
    counts = Counter(file.statuses[run.name].state for run in runs)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    sys.stdout.write(f"{states}; {GO_ON}\n{_how_to_cancel(queue, queued.stages)}")
    if queued.left:
        sys.stdout.write(f"{len(queued.left)} of them are not in the queue yet\n")
    return 0


def _how_to_cancel(queue: SlurmQueue, names: Iterable[str]) -> str:
    """Returns a line with the command that ends jobs; none where there are none."""
    numbers = [queue.numbers[name] for name in names]
    return f"in Slurm's queue: {len(numbers)} jobs; to cancel them: scancel {' '.join(numbers)}\n" if numbers else ""
