"""Commands of fedvlp in processes of their own, as a shell starts them, but with the library imported already."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

PRELOADED = ("benchmarks.faults.commands", "fedvlp.commands.run", "fedvlp.methods", "fedvlp.data", "open_clip")
LIMIT = 180.0
"""Seconds after which a command that should have ended is killed."""
NOBODY = 65534


@dataclass(frozen=True)
class Finished:
    """What a command left.

    Attributes:
        code: its exit code; minus the signal's number if a signal ended it.
        output: what it wrote to the terminal, both streams.
        seconds: how long it ran.
        hung: whether it had to be killed since it did not end.
    """

    code: int
    output: str
    seconds: float
    hung: bool = False

    @property
    def has_traceback(self) -> bool:
        """Whether it showed its user a traceback."""
        return "Traceback (most recent call last)" in self.output

    @property
    def error(self) -> str:
        """The line that says what is wrong; empty if there is none."""
        lines = [line for line in self.output.splitlines() if line.startswith("fedvlp") and ": error:" in line]
        return lines[-1].partition(": error:")[2].strip() if lines else ""


class Running:
    """A command that was started.

    Args:
        arguments: words after ``fedvlp``.
        folder: where it runs.
        log: file for what it writes.
        environment: variables besides those of this process.
        user: id of the user as whom it runs; this one's if None.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        log: Path,
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        self.log = log
        self._began = time.monotonic()
        given = (list(arguments), str(folder), str(log), dict(environment or {}), user)
        self._process: BaseProcess = context.Process(target=_carry_out, args=given)
        self._process.start()

    @property
    def pid(self) -> int:
        """The process's id, which is that of its group, too."""
        if self._process.pid is None:
            raise RuntimeError("The command has not started.")
        return self._process.pid

    @property
    def output(self) -> str:
        """What it wrote so far."""
        return self.log.read_text(encoding="utf-8", errors="surrogateescape") if self.log.exists() else ""

    @property
    def is_alive(self) -> bool:
        """Whether it runs still."""
        return self._process.is_alive()

    def children(self) -> list[int]:
        """Returns the ids of its own child processes."""
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if int(fields[1]) == self.pid:
                found.append(int(status.parent.name))
        return sorted(found)

    def signal(self, number: int) -> None:
        """Sends a signal to the process alone."""
        if self.is_alive:
            os.kill(self.pid, number)

    def wait_for(self, text: str, limit: float = LIMIT) -> bool:
        """Waits until the command has written a text; says whether it has."""
        ends = time.monotonic() + limit
        while text not in self.output:
            if not self.is_alive or time.monotonic() > ends:
                return text in self.output
            time.sleep(0.02)
        return True

    def wait(self, limit: float = LIMIT) -> Finished:
        """Returns what it left; kills it and all that it started if it does not end in time."""
        self._process.join(limit)
        hung = self._process.is_alive()
        self.kill()
        self._process.join()
        code = self._process.exitcode
        return Finished(0 if code is None else code, self.output, time.monotonic() - self._began, hung)

    def kill(self) -> None:
        """Kills the process and all that it started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return


def _carry_out(arguments: list[str], folder: str, log: str, environment: dict[str, str], user: int | None) -> None:
    """Becomes a command: with a session, a folder and a terminal of its own."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    if user is not None:
        os.setuid(user)
    os.chdir(folder)
    sys.path.insert(0, folder)  # as `python -m` does
    os.environ.update(environment)
    sys.argv = ["fedvlp", *arguments]
    sys.exit(importlib.import_module("fedvlp.commands.cli").main(arguments))
