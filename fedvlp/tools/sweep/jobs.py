"""Runs of ``fedvlp``, each in its own process, several at a time or as a job array of Slurm."""

import atexit
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
from io import TextIOWrapper
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from unittest.mock import patch

from fedvlp.commands.cli import main
from fedvlp.results.record import SWEEP_FILE
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_json

COMMAND = (sys.executable, "-u", "-m", "fedvlp")
LOG_START = "$ fedvlp "
PRELOADED = ("fedvlp.commands.lightning_cli", "fedvlp.data.benchmarks.modules", "fedvlp.tools.sweep.jobs")
"""Modules that the fork server imports first. None may use a GPU or start a thread (as pyarrow does)."""
SECONDS_TO_STOP = 10.0


@dataclass(frozen=True)
class Status:
    """The state of a run.

    Attributes:
        state: The next call resumes an interrupted run after its last round, and retries a failed run.
        seconds: Duration of the last attempt, if known.
        error: The reason of a failure.
    """

    state: Literal["waiting", "running", "done", "failed", "interrupted"]
    seconds: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Job:
    """A run of a sweep.

    Attributes:
        name: Name of its folder in the sweep's folder.
        arguments: Arguments of ``fedvlp`` that start or resume the run.
        folder: Folder of its attempts, each in a folder named after its start time.
        axes: The values of ``model``, ``config``, ``held_out`` and ``seed``.
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
        """Whether the run has finished and written its summary."""
        return any(self.folder.glob("*/summary.json"))

    @property
    def log(self) -> Path:
        """File with the output of all attempts."""
        return self.folder / "log.txt"

    def error(self) -> str:
        """Find the last error in the log of the last attempt, otherwise its last line."""
        log = self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""
        lines = log.rpartition(LOG_START)[2].splitlines()[1:]
        errors = [line for line in lines if ": error: " in line]
        return (errors or lines or ["No output."])[-1]


class SweepProgress:
    """The states of a sweep's runs, stored in ``sweep.json``.

    Attributes:
        entries: Entries of the file by run name, including runs of earlier calls with other arguments.
        is_submitted: Whether Slurm runs the missing runs.
    """

    def __init__(self, folder: Path, jobs: Sequence[Job]) -> None:
        self.path = folder / SWEEP_FILE
        self.jobs = jobs
        self.is_submitted = False
        try:
            self.entries: dict[str, Any] = dict(json.loads(self.path.read_text(encoding="utf-8"))["runs"])
        except (OSError, ValueError, KeyError, TypeError):
            self.entries = {}
        # Run folders override the file, because the last call may have been killed.
        for job in jobs:
            seconds = self.entries.get(job.name, {}).get("seconds")
            status = Status("done", seconds) if job.is_done else Status("waiting")
            self.entries[job.name] = {**job.axes, **asdict(status)}

    def state(self, job: Job) -> str:
        """Look up the state of a run."""
        return str(self.entries[job.name]["state"])

    @property
    def missing(self) -> list[Job]:
        """Runs that are not done."""
        return [job for job in self.jobs if self.state(job) != "done"]

    def report(self, job: Job, status: Status) -> None:
        """Record the new state of a run, and print a line if the run has ended."""
        self.entries[job.name] = {**job.axes, **asdict(status)}
        self.write()
        if status.state in ("done", "failed"):
            num_ended = sum(self.state(each) in ("done", "failed") for each in self.jobs)
            outcome = f"failed: {status.error}" if status.error else "done"
            sys.stdout.write(f"{num_ended}/{len(self.jobs)} {job.title}: {outcome}, {status.seconds or 0.0:.0f} s\n")
            sys.stdout.flush()

    def write(self) -> None:
        """Write ``sweep.json``."""
        write_json(self.path, {"runs": self.entries})

    def print_failures(self) -> int:
        """Print error and log of each run that is not done. Return 1 if there are any, and 0 for submitted runs."""
        if self.is_submitted:
            return 0
        sys.stdout.write(f"{len(self.jobs) - len(self.missing)} of {len(self.jobs)} runs done\n")
        for job in self.missing:
            sys.stderr.write(f"{self.state(job)}: {job.title}: {self.entries[job.name]['error']}\n  {job.log}\n")
        return 1 if self.missing else 0


class RunningJob(NamedTuple):
    """A run with its process, device and monotonic start time."""

    job: Job
    process: BaseProcess
    device: str | None
    began: float

    def status(self) -> Status:
        """Describe the outcome of the run after its process has ended."""
        seconds = time.monotonic() - self.began
        if self.job.is_done:
            return Status("done", seconds)
        # A negative code is the number of the signal that killed the process without a message.
        code = self.process.exitcode or 0
        error = f"The process was killed by {signal.Signals(-code).name}." if code < 0 else self.job.error()
        return Status("failed", seconds, error)


def run_jobs(
    jobs: Sequence[Job],
    workers: int,
    report: Callable[[Job, Status], None],
    devices: Sequence[str] = (),
    command: Callable[[Sequence[str]], int] = main,
) -> None:
    """Run jobs in order, each in its own process. A job that fails or is killed does not affect the others.

    On Linux, a server process imports all modules once and forks a process for each run, which then starts in about a
    second. Runs on GPUs or on other systems, where forking is unsafe or unavailable, start a fresh interpreter.

    ``devices`` are values of CUDA_VISIBLE_DEVICES, shared evenly among the workers. Without devices, each run uses one
    thread, unless OMP_NUM_THREADS is set. An exception, such as KeyboardInterrupt, stops all runs and reports them as
    interrupted. ``command`` runs the arguments of a job; it must be picklable.
    """
    # Pools of concurrent.futures and multiprocessing break if one of their processes is killed.
    context: Any = get_context("forkserver" if sys.platform == "linux" and not devices else "spawn")
    context.set_forkserver_preload(list(PRELOADED))
    free_devices = deque(devices[index % len(devices)] if devices else None for index in range(workers))
    waiting = deque(jobs)
    running: dict[int, RunningJob] = {}
    try:
        while waiting or running:
            while waiting and free_devices:
                job, device = waiting.popleft(), free_devices.popleft()
                process = context.Process(target=_run_job, args=(job, command))
                # Several runs with one thread per core would slow each other down. Libraries read these variables when
                # they are imported.
                threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
                with patch.dict(os.environ, threads if device is None else {"CUDA_VISIBLE_DEVICES": device}):
                    process.start()
                running[process.sentinel] = RunningJob(job, process, device, time.monotonic())
                report(job, Status("running"))
            for sentinel in wait(list(running)):
                ended = running.pop(cast(int, sentinel))
                ended.process.join()
                free_devices.append(ended.device)
                report(ended.job, ended.status())
    finally:
        for stopped in running.values():
            stopped.process.terminate()
        end = time.monotonic() + SECONDS_TO_STOP
        for stopped in running.values():
            stopped.process.join(max(0.0, end - time.monotonic()))
            stopped.process.kill()
            stopped.process.join()
            report(stopped.job, Status("interrupted", time.monotonic() - stopped.began))


def _run_job(job: Job, command: Callable[[Sequence[str]], int]) -> None:
    if sys.platform != "win32":
        # Only the sweep receives Ctrl-C; it then stops each run once with SIGTERM.
        os.setsid()
    job.folder.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab", buffering=0) as log:
        log.write(f"{LOG_START}{shlex.join(job.arguments)}\n".encode())
        for standard in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), standard.fileno())
            cast(TextIOWrapper, standard).reconfigure(line_buffering=True)
    sys.argv = ["fedvlp", *job.arguments]
    try:
        code = command(job.arguments)
    finally:
        # multiprocessing skips exit functions, but Weights & Biases finishes its run in one.
        atexit._run_exitfuncs()
    sys.exit(code)


@dataclass(frozen=True)
class SlurmArray:
    """A Slurm job array of the missing runs, with output ``slurm-<array>_<task>.txt`` in the sweep's folder.

    Attributes:
        folder: The sweep's folder.
        options: Options of ``sbatch``, with underscores in their names.
        setup: Shell commands before each run, e.g. to load modules.
    """

    folder: Path
    options: Mapping[str, str]
    setup: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Name of the array in the queue, unique for each folder."""
        digest = hashlib.sha256(os.fsencode(self.folder.resolve())).hexdigest()[:8]
        return f"fedvlp-{self.folder.name}-{digest}"

    def num_queued(self) -> int:
        """Count the waiting and running tasks of the array."""
        tasks = _call_slurm(["squeue", "--me", "--array", "--noheader", "--format=%i", f"--name={self.name}"])
        return len(tasks.split())

    def submit(self, jobs: Sequence[Job], workers: int | None) -> str:
        """Submit runs, with at most ``workers`` at a time, and return the number of the array."""
        # One script for all tasks. Each branch replaces the shell by its run, so that the run receives signals.
        branches = [f"{index}) exec {shlex.join([*COMMAND, *job.arguments])} ;;" for index, job in enumerate(jobs)]
        threads = "export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"
        script = ["#!/bin/bash", *self.setup, threads, "case $SLURM_ARRAY_TASK_ID in", *branches, "esac"]
        arguments = [
            "--parsable",
            f"--job-name={self.name}",
            f"--array=0-{len(jobs) - 1}" + (f"%{workers}" if workers else ""),
            f"--output={str(self.folder.resolve()).replace('%', '%%')}/slurm-%A_%a.txt",
            # A task that is preempted or loses its node restarts and resumes its run.
            "--requeue",
            *(f"--{name.replace('_', '-')}={value}" for name, value in self.options.items()),
        ]
        # With several clusters, sbatch appends the name of the cluster.
        return _call_slurm(["sbatch", *arguments], "\n".join([*script, ""])).strip().partition(";")[0]


def _call_slurm(command: Sequence[str], text: str = "") -> str:
    try:
        result = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(
            f"Slurm's command {command[0]} cannot be run ({error.strerror}). Use a machine of the cluster, or "
            "--launcher local."
        ) from error
    if result.returncode:
        raise UserError(f"Slurm's command {command[0]} failed: {' '.join(result.stderr.split())}")
    return result.stdout
