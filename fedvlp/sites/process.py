"""The process that serves a site: its lock, its status file, and commands to inspect and end it."""

import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fedvlp.sites.site_config import read_site_config
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import is_locked, locked, write_text

FILE = "status.json"  # in the site's home
SECONDS_TO_STOP = 15.0
log = logging.getLogger(__name__)


class Status:
    """Status of this process for ``fedvlp site status``: Flower's id of the site, and the number of answered messages.

    ``state`` is ``connecting``, ``idle``, ``busy`` with a message, or ``offline`` without the server.
    """

    def __init__(self, home: Path) -> None:
        self.path = home / FILE
        self.state = "connecting"
        self.node = int(_read(self.path).get("node", 0))
        self.answered = 0

    def report(self, state: str) -> None:
        """Write a new state; a full disk only causes a warning."""
        self.state = state
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        values = {"state": state, "process": os.getpid(), "answered": self.answered, "since": since, "node": self.node}
        try:
            write_text(self.path, json.dumps(values))
        except OSError as error:
            log.warning("can't write %s: %s", self.path, error)


@contextmanager
def single_process(home: Path) -> Iterator[Status]:
    """Hold the lock of a site's home, or raise a UserError if another process does."""
    read_site_config(home)
    try:
        with locked(home / FILE, wait=False):
            status = Status(home)
            status.report("connecting")
            yield status
    except BlockingIOError as error:
        raise UserError(f"Another process already serves {home}. End it with: fedvlp site stop {home}") from error


def site_status(home: Path) -> dict[str, Any]:
    """Read the status of a site's process; its ``state`` is ``stopped`` if there is none."""
    read_site_config(home)
    if not is_locked(home / FILE):
        return {"state": "stopped"}
    return {"state": "connecting", **_read(home / FILE)}


def stop_site(home: Path) -> bool:
    """End the process of a site, even in the middle of a round; return whether there was one."""
    process = site_status(home).get("process")
    if process is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
    deadline = time.monotonic() + SECONDS_TO_STOP
    while is_locked(home / FILE):
        if time.monotonic() > deadline:
            raise UserError(f"The site's process does not end. Kill it with: kill -9 {process}")
        time.sleep(0.05)
    return True


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
