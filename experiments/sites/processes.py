"""Processes that a script starts, and that all end with it, also those that they have started themselves."""

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
"""An environment variable whose value every process that these start inherits, whatever group it puts itself into."""


class Processes:
    """Starts processes, each with a log and a process group of its own, and ends all that came of them.

    Args:
        folder: where the logs are.
        environment: what the processes have besides this process's variables.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self._environment = {**os.environ, **environment, MARK: self.mark}
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, words: Sequence[str | Path], more: Mapping[str, str] | None = None) -> None:
        """Starts a process whose output goes to ``name.log``, behind what an earlier one of the name wrote."""
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
        """Starts a process that is soon over, and whose output is read."""
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
        """Returns the path of a process's log."""
        return self.folder / f"{name}.log"

    def text(self, name: str) -> str:
        """Returns what a process has printed so far."""
        path = self.log(name)
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def code(self, name: str) -> int | None:
        """Returns a process's exit code; None while it runs."""
        return self._started[name].poll()

    def wait(self, name: str, seconds: float) -> int | None:
        """Waits for a process to end, and returns its exit code; None if it still runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._started[name].wait(seconds)
        return None

    def end(self, name: str, how: signal.Signals = signal.SIGTERM, patience: float = 5) -> None:
        """Ends a process and its group: first as asked, and what is left after a while by force."""
        process = self._started[name]
        for each in (how, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, each)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)
        process.wait()

    def end_started(self) -> None:
        """Ends what was started, with its groups, the newest first."""
        for name in reversed(self._started):
            self.end(name)

    def end_left(self, patience: float = 10) -> list[str]:
        """Ends by force what else has come of what was started, and does not end by itself; returns the commands."""
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
        """Returns the commands of all living processes that came of these, by id, if a word is in them; Linux alone."""
        found = {}
        marked = f"{MARK}={self.mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile, or is somebody else's
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                if command and word in command and marked in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = command
        return found
