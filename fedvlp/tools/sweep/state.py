"""The states of a sweep's runs, kept in ``sweep.json``; what a run folder holds counts more."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedvlp.results.sweep_folder import SWEEP_FILE
from fedvlp.tools.sweep.job import Job
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import locked, write_json

StateName = Literal["waiting", "running", "done", "failed", "interrupted"]


@dataclass(frozen=True)
class Status:
    """What became of a run.

    Attributes:
        state: an interrupted run goes on from its last round; a failed one is tried again by the next call.
        seconds: how long its last attempt took.
        error: why it failed.
    """

    state: StateName
    seconds: float | None = None
    error: str = ""


@contextmanager
def lock_sweep(folder: Path) -> Iterator[None]:
    """Makes the folder of a sweep, and holds it against other sweeps until the process ends.

    Raises:
        UserError: if another sweep works there, or nothing can be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / SWEEP_FILE, wait=False):
            yield
    except BlockingIOError:
        raise UserError(
            f"Another sweep is working in {folder}. Wait for its end, or choose another --output."
        ) from None
    except (FileExistsError, PermissionError) as error:
        raise UserError(f"The sweep can't write to {folder} ({error.strerror}). Choose another --output.") from error


class SweepFile:
    """The file ``sweep.json``, always whole: one entry for each run, those of earlier calls too.

    Args:
        folder: the sweep's.
        jobs: the runs.
        about: what else to write of each run, by its name.
    """

    def __init__(self, folder: Path, jobs: list[Job], about: Mapping[str, Mapping[str, Any]]) -> None:
        self.path = folder / SWEEP_FILE
        self.began = time.monotonic()
        known = _read(self.path)
        self.seconds_before = float(known.get("seconds", 0.0))
        self.entries: dict[str, Any] = dict(known.get("runs", {}))
        self.statuses = {job.name: _status_now(job, self.entries.get(job.name, {})) for job in jobs}
        for name, status in self.statuses.items():
            self.entries[name] = {**about.get(name, {}), **asdict(status)}

    @property
    def seconds(self) -> float:
        """How long the sweep took so far, all calls together."""
        return self.seconds_before + time.monotonic() - self.began

    def set(self, name: str, status: Status) -> None:
        """Writes down what became of a run."""
        self.statuses[name] = status
        self.entries[name] |= asdict(status)
        self.write()

    def write(self) -> None:
        """Writes the file."""
        write_json(self.path, {"seconds": self.seconds, "runs": self.entries})


def _status_now(job: Job, entry: Mapping[str, Any]) -> Status:
    """Returns a run's state before anything runs: what its folder says, then what the file says."""
    if job.is_done:
        return Status("done", entry.get("seconds"))
    if entry.get("state") in ("running", "interrupted"):
        return Status("interrupted", entry.get("seconds"))
    return Status("waiting")


def _read(path: Path) -> dict[str, Any]:
    """Returns the file's content; nothing if there is none or it can't be understood."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and isinstance(content.get("runs"), dict) else {}
