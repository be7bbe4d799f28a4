"""Commands of fedvlp in separate processes, as started by a shell, but with the library already imported."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

PRELOADED = ("benchmarks.faults.commands", "fedvlp.commands.lightning_cli", "open_clip")
LIMIT = 180.0
"""Seconds after which a command that should have ended is killed."""
END = "\x1e exit code {} \x1e\n"
"""Written after each of several commands."""


@dataclass(frozen=True)
class Finished:
    """The result of a command.

    Attributes:
        code: Exit code; minus the number of the signal if a signal ended the process.
        output: Output and error output.
        seconds: Duration.
        hung: Whether it had to be killed because it did not end.
    """

    code: int
    output: str
    seconds: float
    hung: bool = False

    @property
    def has_traceback(self) -> bool:
        """Whether the output contains a traceback."""
        return "Traceback (most recent call last)" in self.output

    @property
    def error(self) -> str:
        """The error message with its continuation lines; empty if there is none."""
        found = re.split(r"^fedvlp[\w ]*: error:", self.output, flags=re.MULTILINE)
        return found[-1].strip() if len(found) > 1 else ""


class Running:
    """A running command.

    Args:
        arguments: Words after ``fedvlp``, or several lists of such words, to run in sequence in one process.
        folder: Working directory.
        log: File for the output.
        environment: Additional environment variables.
    """

    def __init__(
        self,
        arguments: Sequence[str] | Sequence[Sequence[str]],
        folder: Path,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        self.log = log
        self._began = time.monotonic()
        given = (list(arguments), str(folder), str(log), dict(environment or {}))
        self._process: BaseProcess = context.Process(target=_carry_out, args=given)
        self._process.start()

    @property
    def pid(self) -> int:
        """Id of the process, which is also the id of its group."""
        if self._process.pid is None:
            raise RuntimeError("The command has not started.")
        return self._process.pid

    @property
    def output(self) -> str:
        """The output so far."""
        return self.log.read_text(encoding="utf-8", errors="surrogateescape") if self.log.exists() else ""

    @property
    def is_alive(self) -> bool:
        """Whether the command is still running."""
        return self._process.is_alive()

    def children(self) -> list[int]:
        """List the ids of the child processes."""
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if int(fields[1]) == self.pid:
                found.append(int(status.parent.name))
        return sorted(found)

    def signal(self, number: int) -> None:
        """Send a signal only to the process."""
        if self.is_alive:
            os.kill(self.pid, number)

    def wait_for(self, text: str, limit: float = LIMIT) -> bool:
        """Wait until the command has printed a text; return whether it has."""
        ends = time.monotonic() + limit
        while text not in self.output:
            if not self.is_alive or time.monotonic() > ends:
                return text in self.output
            time.sleep(0.02)
        return True

    def wait(self, limit: float = LIMIT) -> Finished:
        """Wait for the result; kill the command and its processes if it does not end in time."""
        self._process.join(limit)
        hung = self._process.is_alive()
        self.kill()
        self._process.join()
        code = self._process.exitcode
        return Finished(0 if code is None else code, self.output, time.monotonic() - self._began, hung)

    def kill(self) -> None:
        """Kill the process and all processes that it started."""
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or has no group yet
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()


def several(output: str) -> list[Finished]:
    """Split the output of one process into the results of its commands."""
    parts = re.split(END.format(r"(-?\d+)").replace(" \x1e", " ?\x1e"), output)
    return [Finished(int(code), text, 0.0) for text, code in zip(parts[0::2], parts[1::2], strict=False)]


def other_program(words: Sequence[str], folder: Path, environment: Mapping[str, str], limit: float) -> Finished:
    """Run a program other than fedvlp, and return its result."""
    began = time.monotonic()
    everything = {**os.environ, **environment}
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env=everything,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        text = (error.stdout or b"").decode("utf-8", "surrogateescape")
        return Finished(-signal.SIGKILL, text, time.monotonic() - began, hung=True)
    return Finished(done.returncode, done.stdout.decode("utf-8", "surrogateescape"), time.monotonic() - began)


def _carry_out(arguments: list[Any], folder: str, log: str, environment: dict[str, str]) -> None:
    """Turn this process into a command, with its own session, folder and terminal."""
    os.setsid()
    multiprocessing.set_start_method(None, force=True)  # else it starts processes as it was started
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.chdir(folder)
    sys.path.insert(0, folder)  # as in `python -m`
    os.environ.update(environment)
    if not arguments or isinstance(arguments[0], str):
        sys.argv = ["fedvlp", *arguments]
        sys.exit(importlib.import_module("fedvlp.commands.cli").main(arguments))
    for each in arguments:
        sys.argv = ["fedvlp", *each]
        code = _code(each)
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(1, END.format(code).encode())


def _code(arguments: list[str]) -> int:
    """Run one of several commands and compute its exit code as Python does."""
    try:
        return int(importlib.import_module("fedvlp.commands.cli").main(arguments))
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
