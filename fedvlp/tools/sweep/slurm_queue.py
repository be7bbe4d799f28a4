"""A sweep's jobs in Slurm's queue: submitted by ``sbatch``, looked for by ``squeue`` and ``sacct``.

A job is a script of a few lines that calls ``fedvlp fit``. What is kept of it is its number: nothing is pickled.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedvlp.tools.sweep.job import LOG_START, Job
from fedvlp.tools.sweep.slurm_options import SlurmOptions
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_json

FILE_NAME = "slurm.json"
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
SECONDS_OF = (1, 60, 3600)


class SlurmError(UserError):
    """A command of Slurm refused; its own words say why."""


@dataclass(frozen=True)
class SlurmState:
    """What Slurm says of a job.

    Attributes:
        word: Slurm's name of the state; empty if it has forgotten the job.
        seconds: how long the job ran.
    """

    word: str = ""
    seconds: float | None = None

    @property
    def stage(self) -> Literal["waiting", "running", "ended"]:
        """What that means for a run."""
        if self.word in WAITING:
            return "waiting"
        return "running" if self.word in RUNNING else "ended"


class SlurmQueue:
    """The jobs of one sweep, whose numbers are kept in ``slurm.json``.

    Args:
        folder: the sweep's.
        options: what each job asks for.
        command: what makes a run from the arguments of ``fedvlp``.
    """

    def __init__(
        self, folder: Path, options: SlurmOptions, command: Sequence[str] = (sys.executable, "-u", "-m", "fedvlp")
    ) -> None:
        self.path = folder / FILE_NAME
        self.options = options
        self.command = command
        self.numbers = _read(self.path)

    def submit(self, job: Job) -> None:
        """Puts a run into the queue.

        Raises:
            SlurmError: if ``sbatch`` refuses.
        """
        # Ctrl-C is raised in the main thread alone, so no job is submitted whose number is not kept.
        with ThreadPoolExecutor(1) as apart:
            apart.submit(self._submit, job).result()

    def forget(self, name: str) -> None:
        """Drops the number of a job that has ended."""
        self.numbers.pop(name, None)
        write_json(self.path, self.numbers)

    def states(self, names: Iterable[str]) -> dict[str, SlurmState]:
        """Returns what Slurm says of the jobs of runs.

        Args:
            names: those of the runs; each was submitted.

        Raises:
            SlurmError: if ``squeue`` does not answer.
        """
        numbers = {name: self.numbers[name] for name in names}
        if not numbers:
            return {}
        # All of this user's jobs, as a list with one that is forgotten already is refused.
        queued = ["squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%M"]
        known = _states(_call(queued))
        forgotten = sorted(set(numbers.values()) - known.keys())
        if forgotten:
            with suppress(SlurmError):  # not every cluster keeps accounts
                ended = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State,Elapsed"]
                known |= _states(_call([*ended, f"--jobs={','.join(forgotten)}"]))
        return {name: known.get(number, SlurmState()) for name, number in numbers.items()}

    def _submit(self, job: Job) -> None:
        job.folder.mkdir(parents=True, exist_ok=True)
        log = str(job.log.resolve()).replace("%", "%%")
        # A job that makes way for another, or whose node fails, begins again by itself, and so goes on.
        own = ["--parsable", f"--job-name={job.name}", f"--output={log}", "--open-mode=append", "--requeue"]
        said = _call(["sbatch", *own, *self.options.arguments], self._script(job))
        self.numbers[job.name] = said.strip().partition(";")[0]
        write_json(self.path, self.numbers)

    def _script(self, job: Job) -> str:
        """Returns what the job does."""
        lines = [
            "#!/bin/bash",
            *self.options.setup,
            f"printf '%s\\n' {shlex.quote(LOG_START + shlex.join(job.arguments))}",
            f"exec {shlex.join([*self.command, *job.arguments])}",
        ]
        return "\n".join(lines) + "\n"


def _states(text: str) -> dict[str, SlurmState]:
    """Returns the states by the jobs' numbers, from lines such as ``12|CANCELLED by 1000|1-02:03:04``."""
    rows = [line.strip().split("|") for line in text.splitlines()]
    return {row[0]: SlurmState(row[1].split(" ")[0], _seconds(row[2])) for row in rows if len(row) == 3}


def _seconds(text: str) -> float | None:
    """Returns a time of Slurm's in seconds; None if it is none.

    >>> _seconds("1-02:03:04"), _seconds("3:04"), _seconds("INVALID")
    (93784.0, 184.0, None)
    """
    days, _, clock = text.rpartition("-")
    try:
        parts = [int(part) for part in reversed(clock.split(":"))]
        return float(86400 * int(days or 0) + sum(a * b for a, b in zip(parts, SECONDS_OF, strict=False)))
    except ValueError:
        return None


def _call(command: Sequence[str], text: str = "") -> str:
    """Returns what a command of Slurm prints.

    Raises:
        SlurmError: if it is not there, or fails.
    """
    try:
        # In a session of its own, so that Ctrl-C does not reach it.
        found = subprocess.run(
            command, input=text, capture_output=True, encoding="utf-8", errors="replace", start_new_session=True
        )
    except OSError as error:
        raise SlurmError(
            f"Slurm's command {command[0]} can't be called ({error.strerror}). Call this on a machine of the cluster, "
            "or choose --launcher local."
        ) from error
    if found.returncode:
        words = " ".join(found.stderr.split()) or f"exit code {found.returncode}"
        raise SlurmError(f"Slurm's command {command[0]} refuses: {words}")
    return found.stdout


def _read(path: Path) -> dict[str, str]:
    """Returns the numbers of jobs by their runs' names; none if there are none.

    Raises:
        UserError: if the file is damaged: its jobs would be submitted again.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict) or not all(isinstance(number, str) for number in content.values()):
        raise UserError(f"{path} can't be read, so it is not known which jobs are queued. Cancel them and remove it.")
    return content
