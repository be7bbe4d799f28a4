"""One run of a sweep: where it is, what became of it, and how its own process makes it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from fedvlp.utils.files import locked

Train = Callable[[Sequence[str]], int]
"""Makes a run from the arguments of ``fedvlp`` and returns an exit code, as ``fedvlp.commands.cli.main`` does."""

LOG_START = "$ fedvlp "


@dataclass(frozen=True)
class Job:
    """A run that is to be made.

    Attributes:
        name: what it is called.
        arguments: those of ``fedvlp``, with which it begins or goes on.
        folder: where its attempts are, each in a folder named after a time.
    """

    name: str
    arguments: tuple[str, ...]
    folder: Path

    @property
    def is_done(self) -> bool:
        """Whether the run has ended."""
        return any(self.folder.glob("*/summary.json"))

    @property
    def summary(self) -> dict[str, Any]:
        """What the run wrote at its end."""
        path = sorted(self.folder.glob("*/summary.json"))[-1]
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return summary

    @property
    def log(self) -> Path:
        """The file of all that its attempts printed."""
        return self.folder / "log.txt"

    def error(self, code: int) -> str:
        """Returns what went wrong in the last attempt, whose process ended with this exit code."""
        if code == 0:
            return "It ended without a summary.json."
        if code < 0:
            name = signal.Signals(-code).name
            hint = ": often too little memory" if name == "SIGKILL" else ""
            return f"The process was ended by {name}{hint}."
        log = self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""
        lines = log.rpartition(LOG_START)[2].splitlines()[1:]
        starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (") or ": error: " in line]
        text = "\n".join(lines[starts[-1] :] if starts else lines[-5:]).strip()
        return text or f"It ended with exit code {code}."


def headline(error: str) -> str:
    r"""Returns the line of an error that says most.

    >>> headline("Traceback (most recent call last):\n  File ...\nValueError: no")
    'ValueError: no'
    """
    lines = error.splitlines() or [""]
    return lines[-1] if lines[0].startswith("Traceback (") else lines[0]


def run_job(train: Train, job: Job, environment: Mapping[str, str]) -> None:
    """Makes a run in the process that calls it, which is its own, and ends with the run's exit code.

    The run and all processes that it starts end with the sweep. Another process that makes the same run is waited for.
    """
    if hasattr(os, "setsid"):
        os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.update(environment)
    sys.argv[1:] = job.arguments  # what Lightning starts further processes of a run with
    job.folder.mkdir(parents=True, exist_ok=True)
    _print_to(job.log)
    code = 1
    try:
        with locked(job.log):
            if job.is_done:
                sys.exit(0)
            sys.stdout.write(f"{LOG_START}{shlex.join(job.arguments)}\n")
            code = train(job.arguments)
    except KeyboardInterrupt:
        code = 130
    finally:
        _finish_wandb(code)
    sys.exit(code)


def _end_with_parent() -> None:
    """Ends this process and those that it started as soon as the sweep's own has ended."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)  # Windows has no groups of processes


def _print_to(path: Path) -> None:
    """Sends all further output of this process, line by line, to the end of a file."""
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for number, name in ((1, "stdout"), (2, "stderr")):
        setattr(sys, name, os.fdopen(number, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False))


def _finish_wandb(code: int) -> None:
    """Ends the run of Weights & Biases, if there is one: the end of this process would not be noticed by it."""
    wandb = sys.modules.get("wandb")
    if wandb is not None:
        with suppress(Exception):
            wandb.finish(exit_code=code)
