"""Runs of ``fedvlp``, each in a process of its own, several at a time."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

COMMAND = (sys.executable, "-u", "-m", "fedvlp")
LOG_START = "$ fedvlp "
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_STOP = 10.0


@dataclass(frozen=True)
class Status:
    """The state of a run.

    Attributes:
        state: an interrupted run resumes from its last round; a failed one is tried again by the next call.
        seconds: how long its last attempt took, if that is known.
        error: why it failed.
    """

    state: Literal["waiting", "running", "done", "failed", "interrupted"]
    seconds: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Job:
    """A run that a sweep makes.

    Attributes:
        name: its folder below the sweep's.
        arguments: those of ``fedvlp``, which begin or resume it.
        folder: where its attempts are, each in a folder named after a time.
        axes: its values of ``model``, ``config``, ``held_out`` and ``seed``.
    """

    name: str
    arguments: tuple[str, ...]
    folder: Path
    axes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Method, held-out domain and seed."""
        held_out = self.axes["held_out"]
        domain = "all domains seen" if held_out is None else f"held out {held_out}"
        return f"{self.axes['model']}, {domain}, seed {self.axes['seed']}"

    @property
    def is_done(self) -> bool:
        """Whether the run has ended: its folder has a summary."""
        return any(self.folder.glob("*/summary.json"))

    @property
    def summary(self) -> dict[str, Any]:
        """The summary that the run wrote at its end."""
        path = sorted(self.folder.glob("*/summary.json"))[-1]
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return summary

    @property
    def log(self) -> Path:
        """The file of all that its attempts printed."""
        return self.folder / "log.txt"

    @property
    def log_header(self) -> str:
        """The line of the log with which an attempt begins."""
        return LOG_START + shlex.join(self.arguments)

    def error(self) -> str:
        """Returns the end of the last attempt's log, from its error on if there is one."""
        if not self.log.is_file():
            return "It wrote no log."
        log = self.log.read_text(encoding="utf-8", errors="replace")
        lines = log.rpartition(LOG_START)[2].splitlines()[1:]
        starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (") or ": error: " in line]
        return "\n".join(lines[starts[-1] :] if starts else lines[-5:]).strip() or "It ended without a summary.json."


@dataclass(frozen=True)
class RunningJob:
    """A run, its process, the device that it was given, and when it began by the monotonic clock."""

    job: Job
    process: subprocess.Popen[bytes]
    device: str | None
    began: float

    @property
    def status(self) -> Status:
        """How the run ended, once its process has."""
        seconds = time.monotonic() - self.began
        if self.job.is_done:
            return Status("done", seconds)
        # A negative code is the number of the signal that ended the process, which left no message.
        code = self.process.returncode
        if code >= 0:
            return Status("failed", seconds, self.job.error())
        name = signal.Signals(-code).name
        hint = ": often too little memory" if name == "SIGKILL" else ""
        return Status("failed", seconds, f"The process was ended by {name}{hint}.")


def run_jobs(
    jobs: Sequence[Job],
    workers: int,
    report: Callable[[Job, Status], None],
    devices: Sequence[str] = (),
    command: Sequence[str] = COMMAND,
) -> None:
    """Makes the runs in their order; one that fails, or whose process is killed, does not end the others.

    Without ``devices`` each run computes with one thread, unless OMP_NUM_THREADS says otherwise. An exception, such as
    the KeyboardInterrupt of Ctrl-C, stops all runs and reports them as interrupted.

    Args:
        jobs: the runs.
        workers: how many at a time.
        report: called with each change of a run.
        devices: values of CUDA_VISIBLE_DEVICES, shared evenly among the workers; none if runs use no GPU.
        command: what makes a run when a job's arguments follow.
    """
    free_devices = deque(devices[place % len(devices)] if devices else None for place in range(workers))
    waiting = deque(jobs)
    running: list[RunningJob] = []
    try:
        while waiting or running:
            while waiting and free_devices:
                job = waiting.popleft()
                running.append(_start(job, command, free_devices.popleft()))
                report(job, Status("running"))
            # Runs take minutes, so looking costs nothing, and a signal interrupts the sleep at once.
            time.sleep(SECONDS_BETWEEN_LOOKS)
            for ended in [one for one in running if one.process.poll() is not None]:
                running.remove(ended)
                free_devices.append(ended.device)
                report(ended.job, ended.status)
    finally:
        _stop(running)
        for stopped in running:
            report(stopped.job, Status("interrupted", time.monotonic() - stopped.began))


def _start(job: Job, command: Sequence[str], device: str | None) -> RunningJob:
    environment = dict(os.environ)
    if device is None:
        # Several runs with a thread for each core would wait for each other.
        environment.setdefault("OMP_NUM_THREADS", "1")
    else:
        environment["CUDA_VISIBLE_DEVICES"] = device
    job.folder.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab", buffering=0) as log:
        log.write(f"{job.log_header}\n".encode())
        process = subprocess.Popen(
            [*command, *job.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            # Ctrl-C is for the sweep alone, which then ends each run once, by SIGTERM.
            start_new_session=True,
        )
    return RunningJob(job, process, device, time.monotonic())


def _stop(running: Sequence[RunningJob]) -> None:
    """Asks all runs to stop, and ends those that have not after some seconds."""
    for stopped in running:
        stopped.process.terminate()
    end = time.monotonic() + SECONDS_TO_STOP
    for stopped in running:
        try:
            stopped.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            stopped.process.kill()
            stopped.process.wait()
