"""``fedvlp sweep --launcher slurm``: the missing runs of a sweep as one job array of Slurm."""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvlp.tools.sweep.jobs import COMMAND, Job, Status
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_json

FILE_NAME = "slurm.json"
SECONDS_BETWEEN_LOOKS = 15.0
OPTIONS = {
    "account": "who is charged",
    "constraint": "features that a node must have",
    "cpus_per_task": "cores of a run, which are also its threads; 1 if not given",
    "exclude": "nodes to leave out",
    "gpus_per_node": "1, or with a type a100:1; no GPU if not given",
    "mem": "memory of a run, such as 16G",
    "partition": "partition, or several as a,b",
    "qos": "quality of service",
    "reservation": "reservation",
    "time": "longest time of a run, such as 04:00:00 or 1-00:00:00",
}
"""Options of ``sbatch``, with underscores, and their help."""
ENDED = frozenset(
    {
        *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"),
        *("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "DEADLINE", "REVOKED"),
    }
)
"""Slurm's words for tasks that have left the queue."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SlurmOptions:
    """What each run asks for.

    Attributes:
        values: options of ``sbatch``, with underscores in their names.
        setup: lines of shell that come before the run, such as to load modules.
    """

    values: Mapping[str, str]
    setup: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """The arguments of ``sbatch``.

        >>> SlurmOptions({"gpus_per_node": "1"}).arguments
        ['--gpus-per-node=1']
        """
        return [f"--{name.replace('_', '-')}={value}" for name, value in self.values.items()]


def read_launcher(launcher: Any) -> SlurmOptions | None:
    """Reads what each run asks Slurm for; None if the runs are made on this machine.

    Args:
        launcher: ``local``, ``slurm``, or a mapping with that ``name`` and options.

    Raises:
        UserError: for another launcher, or an option that it has not.
    """
    content = {"name": launcher} if isinstance(launcher, str) else launcher
    if not isinstance(content, dict) or content.get("name") not in ("local", "slurm"):
        raise UserError(f"Expected launcher to be local, slurm or a mapping with such a name; got {launcher!r}.")
    values = {name: value for name, value in content.items() if name not in ("name", "setup")}
    setup = content.get("setup") or []
    if content["name"] == "local":
        if values or setup:
            raise UserError(f"The launcher local has no option {[*values, 'setup'][0]!r}. Use --launcher slurm.")
        return None
    for name in values:
        if name not in OPTIONS:
            raise UserError(f"The launcher slurm has no option {name!r}; it has {', '.join(OPTIONS)} and setup.")
    # sbatch would take this number as minutes.
    if isinstance(values.get("time"), int):
        raise UserError("Put the time of the launcher slurm in quotes, as '04:00:00': YAML reads 4:00:00 as a number.")
    lines = [setup] if isinstance(setup, str) else setup
    return SlurmOptions({name: str(value) for name, value in values.items()}, tuple(str(line) for line in lines))


class SlurmArray:
    """The runs of a sweep in Slurm's queue, whose numbers are kept in ``slurm.json``.

    Args:
        folder: the sweep's.
        options: what each run asks for.
        command: what makes a run when its arguments follow.

    Raises:
        UserError: if ``slurm.json`` is damaged: runs that are queued would be submitted again.
    """

    def __init__(self, folder: Path, options: SlurmOptions, command: Sequence[str] = COMMAND) -> None:
        self.folder = folder
        self.path = folder / FILE_NAME
        self.options = options
        self.command = command
        try:
            self.numbers: dict[str, str] = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self.numbers = {}
        except ValueError:
            raise UserError(f"{self.path} is damaged. Cancel the jobs of this sweep and remove the file.") from None

    def states(self) -> dict[str, str]:
        """Looks up which runs are in the queue, and whether each is ``waiting`` or ``running``.

        Raises:
            UserError: if ``squeue`` does not answer.
        """
        # All of this user's tasks: squeue refuses a list with one that it has forgotten.
        lines = _call(["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%T"]).splitlines()
        words = dict(line.strip().split("|", 1) for line in lines if "|" in line)
        # A task that squeue has forgotten ended some minutes ago.
        states = {}
        for name, number in self.numbers.items():
            word = words.get(number, "COMPLETED")
            if word not in ENDED:
                states[name] = "waiting" if word.startswith(("PENDING", "CONFIGURING", "REQUEUE")) else "running"
        return states

    def submit(self, jobs: Sequence[Job], workers: int | None) -> None:
        """Puts runs into the queue, as one array.

        Args:
            jobs: the runs.
            workers: how many of them run at a time; None for as many as Slurm allows.

        Raises:
            UserError: if ``sbatch`` refuses.
        """
        for job in jobs:
            job.folder.mkdir(parents=True, exist_ok=True)
        array = f"0-{len(jobs) - 1}" + (f"%{workers}" if workers else "")
        arguments = [
            "--parsable",
            f"--job-name=fedvlp-{self.folder.name}",
            f"--array={array}",
            # What Slurm itself says of a task, such as that its time is over; the run has a log of its own.
            f"--output={str(self.folder.resolve()).replace('%', '%%')}/slurm-%A_%a.txt",
            # A task that makes way for another, or whose node fails, begins again by itself, and so resumes.
            "--requeue",
        ]
        # With several clusters sbatch prints the number and the cluster's name.
        number = _call(["sbatch", *arguments, *self.options.arguments], self._script(jobs)).strip().partition(";")[0]
        self.numbers |= {job.name: f"{number}_{index}" for index, job in enumerate(jobs)}
        write_json(self.path, self.numbers)

    def _script(self, jobs: Sequence[Job]) -> str:
        """Returns the script of all tasks, each of which makes one run."""
        lines = [
            "#!/bin/bash",
            *self.options.setup,
            "export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}",
            "case $SLURM_ARRAY_TASK_ID in",
        ]
        # One script for all tasks: each branch replaces the shell by its run, so that signals reach it.
        for index, job in enumerate(jobs):
            lines += [
                f"{index})",
                f"    exec >> {shlex.quote(str(job.log.resolve()))} 2>&1",
                f"    printf '%s\\n' {shlex.quote(job.log_header)}",
                f"    exec {shlex.join([*self.command, *job.arguments])} ;;",
            ]
        return "\n".join([*lines, "esac"]) + "\n"

    def wait(self, jobs: Sequence[Job], report: Callable[[Job, Status], None]) -> None:
        """Watches runs that are in the queue until all have left it."""
        watched = {job.name: job for job in jobs}
        shown: dict[str, str] = {}
        absent: set[str] = set()
        while watched:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            try:
                states = self.states()
            except UserError as error:  # Slurm itself may be restarted, and its jobs run meanwhile
                log.warning("The queue can't be looked at now. %s", error)
                continue
            for name, job in list(watched.items()):
                if name in states:
                    absent.discard(name)
                    if states[name] != shown.get(name):
                        report(job, Status("running" if states[name] == "running" else "waiting"))
                    shown[name] = states[name]
                elif job.is_done or name in absent:
                    del watched[name]
                    report(job, Status("done") if job.is_done else Status("failed", error=self.error(job)))
                else:  # a task that is requeued, or whose files come late from another machine, gets a second look
                    absent.add(name)

    def error(self, job: Job) -> str:
        """Returns what Slurm printed of a run, or else the end of the run's own log."""
        path = self.folder / f"slurm-{self.numbers[job.name]}.txt"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        return lines[-1] if lines else job.error()

    def cancel_command(self, names: Sequence[str]) -> str:
        """Returns the command that takes runs out of the queue."""
        return f"scancel {' '.join(self.numbers[name] for name in names)}"


def _call(command: Sequence[str], text: str = "") -> str:
    """Returns what a command of Slurm prints.

    Raises:
        UserError: if it does not exist, or fails.
    """
    try:
        result = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(
            f"Slurm's command {command[0]} can't be called ({error.strerror}). Call this on a machine of the cluster, "
            "or choose --launcher local."
        ) from error
    if result.returncode:
        words = " ".join(result.stderr.split()) or f"exit code {result.returncode}"
        raise UserError(f"Slurm's command {command[0]} refuses: {words}")
    return result.stdout
