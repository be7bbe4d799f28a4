"""Fake runs and processes of a sweep."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path

from fedvlp.commands.cli import main
from fedvlp.tools.sweep.jobs import Job, Status


def fake_run(arguments: Sequence[str]) -> int:
    """End as the first argument names, in the folder of the second argument, and return the exit code."""
    ending, folder = arguments[0], Path(arguments[1])
    device, threads = os.environ.get("CUDA_VISIBLE_DEVICES", "cpu"), os.environ.get("OMP_NUM_THREADS", "all")
    sys.stdout.write(f"{ending} on {device} with {threads} threads\n")
    with (folder / "attempts").open("a") as attempts:
        attempts.write("attempt\n")
    if ending == "raise":
        raise ValueError("no such luck")
    if ending == "refuse":
        sys.stderr.write("fedvlp: error: a bad root\n")
        sys.stdout.write("more\n")
        return 1
    if ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if ending == "wait" and (folder / "attempts").read_text() == "attempt\n":
        time.sleep(600)
    if ending in ("end", "wait"):
        (folder / "2020-01-01").mkdir()
        (folder / "2020-01-01" / "summary.json").write_text("{}")
    return 0


def make_here(
    jobs: Sequence[Job], workers: int, report: Callable[[Job, Status], None], devices: Sequence[str] = ()
) -> None:
    """Run the jobs of a sweep sequentially in this process."""
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
        code = main(job.arguments)
        report(job, Status("done", 1.0) if job.is_done else Status("failed", error=f"exit code {code}"))


def make_quietly(
    jobs: Sequence[Job], workers: int, report: Callable[[Job, Status], None], devices: Sequence[str] = ()
) -> None:
    """Run the jobs of a sweep sequentially in this process, and write what they print to their logs."""
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
        with job.log.open("w", encoding="utf-8") as log, redirect_stdout(log):
            main(job.arguments)
        report(job, Status("done", 1.0) if job.is_done else Status("failed", error=job.error()))
