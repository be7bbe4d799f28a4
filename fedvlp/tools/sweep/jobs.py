"""Runs of ``fedvlp``: each in its own process, several at a time, or as a job array of Slurm."""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from fedvlp.commands.cli import main
from fedvlp.results.record import SWEEP_FILE
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_json

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

COMMAND = (sys.executable, "-u", "-m", "fedvlp")
LOG_START = "$ fedvlp "
PRELOADED = ("fedvlp.commands.lightning_cli", "fedvlp.data.benchmarks.modules", "fedvlp.tools.sweep.jobs")
"""Modules that the server of runs imports before it forks; none uses a GPU or starts a thread, as pyarrow does."""
SECONDS_TO_STOP = 10.0


@dataclass(frozen=True)
class Status:
    """The state of a run.

    Attributes:
        state: An interrupted run resumes from its last round; a failed run is tried again by the next call.
        seconds: Duration of its last attempt, if known.
        error: The reason of a failure.
    """

    state: Literal["waiting", "running", "done", "failed", "interrupted"]
    seconds: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Job:
    """A run of a sweep.

    Attributes:
        name: Its folder below the sweep's.
        arguments: Arguments of ``fedvlp`` that begin or resume it.
        folder: Folder of its attempts, each in a folder named after a time.
        axes: Its values of ``model``, ``config``, ``held_out`` and ``seed``.
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
        """Whether the run has ended, so that its folder has a summary."""
        return any(self.folder.glob("*/summary.json"))

    @property
    def log(self) -> Path:
        """The file with everything that its attempts printed."""
        return self.folder / "log.txt"

    def error(self) -> str:
        """The last error in the last attempt's log, or otherwise its last line."""
        log = self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""
        lines = log.rpartition(LOG_START)[2].splitlines()[1:]
        errors = [line for line in lines if ": error: " in line]
        return (errors or lines or ["It printed nothing."])[-1]


class SweepProgress:
    """The states of a sweep's runs, written into ``sweep.json``.

    Attributes:
        entries: The file's entries by names of runs, including runs of earlier calls with other arguments.
        is_submitted: Whether Slurm makes the missing runs.
    """

    def __init__(self, folder: Path, jobs: Sequence[Job]) -> None:
        self.path = folder / SWEEP_FILE
        self.jobs = jobs
        self.is_submitted = False
        try:
            self.entries: dict[str, Any] = dict(json.loads(self.path.read_text(encoding="utf-8"))["runs"])
        except (OSError, ValueError, KeyError, TypeError):
            self.entries = {}
        # A folder overrides the file's entry, since the last call may have been killed.
        for job in jobs:
            seconds = self.entries.get(job.name, {}).get("seconds")
            status = Status("done", seconds) if job.is_done else Status("waiting")
            self.entries[job.name] = {**job.axes, **asdict(status)}

    def state(self, job: Job) -> str:
        """The state of a run."""
        return str(self.entries[job.name]["state"])

    @property
    def missing(self) -> list[Job]:
        """The runs that are not done."""
        return [job for job in self.jobs if self.state(job) != "done"]

    def report(self, job: Job, status: Status) -> None:
        """Record a run's new state, and print a line if the run has ended."""
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
        """Print error and log of each run that is not done, and return 1 if there are any; 0 for submitted runs."""
        if self.is_submitted:
            return 0
        sys.stdout.write(f"{len(self.jobs) - len(self.missing)} of {len(self.jobs)} runs done\n")
        for job in self.missing:
            sys.stderr.write(f"{self.state(job)}: {job.title}: {self.entries[job.name]['error']}\n  {job.log}\n")
        return 1 if self.missing else 0


class RunningJob(NamedTuple):
    """A run, its process, its device, and the monotonic time of its start."""

    job: Job
    process: BaseProcess
    device: str | None
    began: float

    def status(self) -> Status:
        """The outcome of the run, whose process has ended."""
        seconds = time.monotonic() - self.began
        if self.job.is_done:
            return Status("done", seconds)
        # A negative code is the number of the signal that ended the process, which left no message.
        code = self.process.exitcode or 0
        error = f"The process was ended by {signal.Signals(-code).name}." if code < 0 else self.job.error()
        return Status("failed", seconds, error)


def run_jobs(
    jobs: Sequence[Job],
    workers: int,
    report: Callable[[Job, Status], None],
    devices: Sequence[str] = (),
    command: Callable[[Sequence[str]], int] = main,
) -> None:
    """Make the runs in their order, each in its own process; a run that fails or is killed does not end the others.

    On Linux a server process imports everything once and forks a process for each run, which then starts in about a
    second. Runs on GPUs, and on other systems, where a fork is missing or unsafe, start in a fresh interpreter.

    ``devices`` are values of CUDA_VISIBLE_DEVICES, shared evenly among the workers. Without them each run computes
    with one thread, unless OMP_NUM_THREADS sets another number. An exception, such as KeyboardInterrupt, stops all
    runs and reports them as interrupted. ``command`` makes a run from a job's arguments; it must be picklable.
    """
    # A pool of concurrent.futures or multiprocessing does not survive that one of its processes is killed.
    context: ForkServerContext | SpawnContext = get_context("spawn")
    if sys.platform == "linux" and not devices:
        context = get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    free_devices = deque(devices[index % len(devices)] if devices else None for index in range(workers))
    waiting = deque(jobs)
    running: dict[int, RunningJob] = {}
    try:
        while waiting or running:
            while waiting and free_devices:
                job, device = waiting.popleft(), free_devices.popleft()
                process = context.Process(target=_make_run, args=(job, command))
                _start(process, device)
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


def _start(process: BaseProcess, device: str | None) -> None:
    """Start a process with one thread or with one GPU; libraries read both when they are imported."""
    before = dict(os.environ)
    if device is None:
        # Several runs with a thread for each core would wait for each other.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    try:
        process.start()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _make_run(job: Job, command: Callable[[Sequence[str]], int]) -> None:
    """Make a run in this process, and end the process with the run's exit code; all that it prints is in its log."""
    if sys.platform != "win32":
        # Ctrl-C is only for the sweep, which then ends each run once, by SIGTERM.
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
        # multiprocessing leaves these out, and Weights & Biases ends its run in one of them.
        atexit._run_exitfuncs()
    sys.exit(code)


@dataclass(frozen=True)
class SlurmArray:
    """Missing runs as one job array of Slurm, which writes ``slurm-<array>_<task>.txt`` into the sweep's folder.

    Attributes:
        folder: The sweep's folder.
        options: Options of ``sbatch``, with underscores in their names.
        setup: Lines of shell before each run, such as to load modules.
    """

    folder: Path
    options: Mapping[str, str]
    setup: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The array's name in the queue, different for each folder."""
        digest = hashlib.sha256(os.fsencode(self.folder.resolve())).hexdigest()[:8]
        return f"fedvlp-{self.folder.name}-{digest}"

    def num_queued(self) -> int:
        """Count the tasks of the array that wait or run."""
        tasks = _call_slurm(["squeue", "--me", "--array", "--noheader", "--format=%i", f"--name={self.name}"])
        return len(tasks.split())

    def submit(self, jobs: Sequence[Job], workers: int | None) -> str:
        """Submit runs, of which at most ``workers`` run at a time, and return the array's number."""
        # One script for all tasks: each branch replaces the shell by its run, so that signals reach it.
        branches = [f"{index}) exec {shlex.join([*COMMAND, *job.arguments])} ;;" for index, job in enumerate(jobs)]
        threads = "export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"
        script = ["#!/bin/bash", *self.setup, threads, "case $SLURM_ARRAY_TASK_ID in", *branches, "esac"]
        arguments = [
            "--parsable",
            f"--job-name={self.name}",
            f"--array=0-{len(jobs) - 1}" + (f"%{workers}" if workers else ""),
            f"--output={str(self.folder.resolve()).replace('%', '%%')}/slurm-%A_%a.txt",
            # A task that is preempted, or whose node fails, begins again by itself and resumes its run.
            "--requeue",
            *(f"--{name.replace('_', '-')}={value}" for name, value in self.options.items()),
        ]
        # With several clusters sbatch prints the number and the cluster's name.
        return _call_slurm(["sbatch", *arguments], "\n".join([*script, ""])).strip().partition(";")[0]


def _call_slurm(command: Sequence[str], text: str = "") -> str:
    """Call a command of Slurm and return its output."""
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
