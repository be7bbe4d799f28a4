"""One process at a time: locks that end with the process that holds them."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # there are none on Windows, where two processes may do the same work twice
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lets one process at a time make a file of the cache; the others wait until it is done or has died.

    Where the disk knows no locks or may not be written to, nobody waits; files are written in one step all the same.

    Args:
        path: the file; the lock is a file beside it that is gone afterwards.
    """
    lock = path.with_name(f".{path.name}.lock")
    handle = _acquired(lock, path)
    try:
        yield
    finally:
        if handle is not None:
            lock.unlink(missing_ok=True)
            os.close(handle)


def _acquired(lock: Path, path: Path) -> int | None:
    """Returns the open lock file once nobody else holds it, or None where there can be no lock."""
    for attempt in itertools.count():
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            return None
        state = _try(handle)
        if state == "held" and _is_at(handle, lock):
            return handle
        os.close(handle)
        if state == "unknown":
            return None
        if state == "busy":
            if attempt == 20:
                log.warning("Another process is making %s; waiting for it.", path)
            time.sleep(0.05)
    raise RuntimeError("This is never reached.")


def _try(handle: int) -> str:
    """Returns whether the lock is now ``held``, is ``busy`` elsewhere, or whether the disk knows none."""
    if fcntl is None:
        return "unknown"
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "busy"
    except OSError:
        return "unknown"
    return "held"


def _is_at(handle: int, lock: Path) -> bool:
    """Whether the open file is still the one of that name, and not one that its last holder removed."""
    try:
        there = os.stat(lock)
    except OSError:
        return False
    return os.path.samestat(os.fstat(handle), there)
