"""Processes of a script that end with it, including their descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

MARK = "FEDVLP_SITES"
"""Environment variable that all descendants inherit, in any process group."""


class Processes:
    """Starter of processes with separate logs and process groups, which also ends all their descendants.

    Args:
        folder: Folder of the logs.
        environment: Additional environment variables.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self._environment = {**os.environ, **environment, MARK: self.mark}
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, words: Sequence[str | Path], more: Mapping[str, str] | None = None) -> None:
        """Start a process that appends its output to ``name.log``."""
        with open(self.log(name), "ab") as log:
            self._started[name] = subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self._environment, **(more or {})},
                cwd=self.folder,
                start_new_session=True,
            )

    def open(self, words: Sequence[str | Path]) -> subprocess.Popen[str]:
        """Start a short process and read its output."""
        return subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            cwd=self.folder,
        )

    def log(self, name: str) -> Path:
        """Path of a process's log."""
        return self.folder / f"{name}.log"

    def text(self, name: str) -> str:
        """Read the output of a process so far."""
        path = self.log(name)
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def code(self, name: str) -> int | None:
        """Look up the exit code of a process; None while it runs."""
        return self._started[name].poll()

    def wait(self, name: str, seconds: float) -> int | None:
        """Wait for a process to end, and return its exit code; None if it is still running."""
        with suppress(subprocess.TimeoutExpired):
            return self._started[name].wait(seconds)
        return None

    def send(self, name: str, how: signal.Signals) -> None:
        """Send a signal to a process and its group."""
        os.killpg(self._started[name].pid, how)

    def end(self, name: str, how: signal.Signals = signal.SIGTERM, patience: float = 5) -> None:
        """End a process and its group with a signal, and kill remaining processes after a while."""
        process = self._started[name]
        for each in (how, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, each)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)
        process.wait()

    def end_started(self) -> None:
        """End all started processes with their groups, newest first."""
        for name in reversed(self._started):
            self.end(name)

    def end_left(self, patience: float = 10) -> list[str]:
        """Kill remaining descendants that do not end by themselves; return their commands."""
        self._wait_for_none(patience)
        stray = self.living()
        for pid in stray:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._wait_for_none(patience)
        return list(stray.values())

    def _wait_for_none(self, seconds: float) -> None:
        began = time.monotonic()
        while self.living() and time.monotonic() - began < seconds:
            time.sleep(0.05)

    def living(self, word: str = "") -> dict[int, str]:
        """List the commands of all living descendants by id, if they contain a word; only on Linux."""
        found = {}
        marked = f"{MARK}={self.mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile, or belongs to another user
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                if command and word in command and marked in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = command
        return found
