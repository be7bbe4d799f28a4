"""Runs of ``fedvlp``: each in a process of its own, several at a time; or as one job array of Slurm."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedvlp.results.record import SWEEP_FILE
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_json

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
    def log(self) -> Path:
        """The file of all that its attempts printed."""
        return self.folder / "log.txt"

    def error(self) -> str:
        """The line of the last attempt's log that says most: its last error, or else the last line."""
        log = self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""
        lines = log.rpartition(LOG_START)[2].splitlines()[1:]
        errors = [line for line in lines if ": error: " in line]
        return (errors or lines or ["It printed nothing."])[-1]


class SweepProgress:
    """The states of a sweep's runs: a printed line for each run that ends, and all of them in ``sweep.json``.

    Attributes:
        entries: what the file says of each run, by its name; also of runs of earlier calls with other arguments.
        is_submitted: whether missing runs are Slurm's to make.
    """

    def __init__(self, folder: Path, jobs: Sequence[Job]) -> None:
        self.path = folder / SWEEP_FILE
        self.jobs = jobs
        self.is_submitted = False
        try:
            self.entries: dict[str, Any] = dict(json.loads(self.path.read_text(encoding="utf-8"))["runs"])
        except (OSError, ValueError, KeyError, TypeError):
            self.entries = {}
        # What a folder holds counts more than what the file says: the last call may have been killed.
        for job in jobs:
            seconds = self.entries.get(job.name, {}).get("seconds")
            status = Status("done", seconds) if job.is_done else Status("waiting")
            self.entries[job.name] = {**job.axes, **asdict(status)}

    def state(self, job: Job) -> str:
        """The state of a run; a run whose folder has a summary is done."""
        return str(self.entries[job.name]["state"])

    @property
    def missing(self) -> list[Job]:
        """The runs that are not done."""
        return [job for job in self.jobs if self.state(job) != "done"]

    def report(self, job: Job, status: Status) -> None:
        """Records a run's new state, and prints a line if the run has ended."""
        self.entries[job.name] = {**job.axes, **asdict(status)}
        self.write()
        if status.state in ("done", "failed"):
            num_ended = sum(self.state(each) in ("done", "failed") for each in self.jobs)
            outcome = f"failed: {status.error}" if status.error else "done"
            sys.stdout.write(f"{num_ended}/{len(self.jobs)} {job.title}: {outcome}, {status.seconds or 0.0:.0f} s\n")
            sys.stdout.flush()

    def write(self) -> None:
        """Writes ``sweep.json``."""
        write_json(self.path, {"runs": self.entries})

    def print_failures(self) -> int:
        """Prints which runs are not done, with the error and log of each, and returns the exit code: 1 if there are."""
        sys.stdout.write(f"{len(self.jobs) - len(self.missing)} of {len(self.jobs)} runs done\n")
        for job in self.missing:
            sys.stderr.write(f"{self.state(job)}: {job.title}: {self.entries[job.name]['error']}\n  {job.log}\n")
        return 1 if self.missing else 0


class RunningJob(NamedTuple):
    """A run, its process, the device that it was given, and when it began by the monotonic clock."""

    job: Job
    process: subprocess.Popen[bytes]
    device: str | None
    began: float


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
                report(ended.job, _status(ended))
    finally:
        for stopped in running:
            stopped.process.terminate()
        end = time.monotonic() + SECONDS_TO_STOP
        for stopped in running:
            try:
                stopped.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                stopped.process.kill()
                stopped.process.wait()
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
        log.write(f"{LOG_START}{shlex.join(job.arguments)}\n".encode())
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


def _status(ended: RunningJob) -> Status:
    """How a run whose process has ended came out."""
    seconds = time.monotonic() - ended.began
    if ended.job.is_done:
        return Status("done", seconds)
    # A negative code is the number of the signal that ended the process, which left no message.
    code = ended.process.returncode
    error = f"The process was ended by {signal.Signals(-code).name}." if code < 0 else ended.job.error()
    return Status("failed", seconds, error)


@dataclass(frozen=True)
class SlurmArray:
    """Missing runs as one job array of Slurm, which writes ``slurm-<array>_<task>.txt`` into the sweep's folder.

    Attributes:
        folder: the sweep's.
        options: options of ``sbatch``, with underscores in their names.
        setup: lines of shell that come before each run, such as to load modules.
    """

    folder: Path
    options: Mapping[str, str]
    setup: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The array's name in the queue, which no other folder's has."""
        digest = hashlib.sha256(os.fsencode(self.folder.resolve())).hexdigest()[:8]
        return f"fedvlp-{self.folder.name}-{digest}"

    def num_queued(self) -> int:
        """How many tasks of the array wait or run."""
        tasks = _call_slurm(["squeue", "--me", "--array", "--noheader", "--format=%i", f"--name={self.name}"])
        return len(tasks.split())

    def submit(self, jobs: Sequence[Job], workers: int | None, command: Sequence[str] = COMMAND) -> str:
        """Puts runs into the queue, so many at a time, or as many as Slurm allows; returns the array's number."""
        # One script for all tasks: each branch replaces the shell by its run, so that signals reach it.
        branches = [f"{index}) exec {shlex.join([*command, *job.arguments])} ;;" for index, job in enumerate(jobs)]
        threads = "export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"
        script = ["#!/bin/bash", *self.setup, threads, "case $SLURM_ARRAY_TASK_ID in", *branches, "esac"]
        arguments = [
            "--parsable",
            f"--job-name={self.name}",
            f"--array=0-{len(jobs) - 1}" + (f"%{workers}" if workers else ""),
            f"--output={str(self.folder.resolve()).replace('%', '%%')}/slurm-%A_%a.txt",
            # A task that makes way for another, or whose node fails, begins again by itself, and so resumes.
            "--requeue",
            *(f"--{name.replace('_', '-')}={value}" for name, value in self.options.items()),
        ]
        # With several clusters sbatch prints the number and the cluster's name.
        return _call_slurm(["sbatch", *arguments], "\n".join([*script, ""])).strip().partition(";")[0]


def _call_slurm(command: Sequence[str], text: str = "") -> str:
    """What a command of Slurm prints."""
    try:
        result = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(
            f"Slurm's command {command[0]} can't be called ({error.strerror}). Call this on a machine of the cluster, "
            "or choose --launcher local."
        ) from error
    if result.returncode:
        raise UserError(f"Slurm's command {command[0]} refuses: {' '.join(result.stderr.split())}")
    return result.stdout
