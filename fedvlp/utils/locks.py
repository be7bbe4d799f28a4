"""One process at a time: locks that end with the process that holds them."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

IS_WINDOWS = os.name == "nt"
"""There a file that is open can't be removed, and of one that is locked the first byte can't be read."""
SECONDS_BETWEEN_TRIES = 0.05
TRIES_BEFORE_WARNING = 20
ANOTHER = "another process"
HELD: set[int] = set()
"""The open lock files that this process holds."""
LockState = Literal["held", "busy", "unsupported"]
log = logging.getLogger(__name__)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Lets one process at a time work on a file or folder.

    The lock ends with the process, however that ends. Where the disk supports no locks, nobody waits. A folder that may
    not be written to has no lock either: who waits only to spare double work goes on without one, but who does not
    wait asks to be alone, so that is an error.

    Args:
        path: the file or folder; the lock is a file beside it that is gone afterwards.
        wait: whether to wait until another process is done or has died.

    Raises:
        BlockingIOError: if ``wait`` is false and another process holds the lock; ``strerror`` says which.
        OSError: if ``wait`` is false and the lock file can't be made.
    """
    lock = path.with_name(f".{path.name}.lock")
    handle = _acquire(lock, path) if wait else _acquire_now(lock, path)
    if handle is not None:
        HELD.add(handle)
    try:
        yield
    finally:
        if handle in HELD:
            _release(lock, handle)


def is_locked(path: Path) -> bool:
    """Whether this process or another holds the lock of a file or folder; where there are no locks, none does."""
    try:
        handle = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR)
    except OSError:
        return False
    state = _flock(handle)
    os.close(handle)  # which ends the lock, if it was to be had
    return state == "busy"


def _acquire(lock: Path, path: Path) -> int | None:
    """Returns the open lock file once nobody else holds it, or None where there can be no lock."""
    for attempt in itertools.count():
        try:
            handle, state = _try(lock)
        except OSError:
            return None
        if state != "busy":
            return handle
        if attempt == TRIES_BEFORE_WARNING:
            log.warning("Another process is making %s; waiting for it.", path)
        time.sleep(SECONDS_BETWEEN_TRIES)
    raise RuntimeError("This is never reached.")


def _acquire_now(lock: Path, path: Path) -> int | None:
    handle, state = _try(lock)
    if state == "busy":
        raise BlockingIOError(errno.EAGAIN, _holder(lock), str(path))
    if handle is not None:
        with suppress(OSError):  # the lock holds without it
            os.truncate(handle, 0)
            os.write(handle, f" process {os.getpid()} on {platform.node()}".encode())
    return handle


def _holder(lock: Path) -> str:
    """Returns who holds a lock, as far as it is known."""
    try:
        with lock.open("rb", buffering=0) as file:
            file.seek(1)  # the first byte is the lock's
            return file.read().decode(errors="replace") or ANOTHER
    except OSError:
        return ANOTHER


def _release(lock: Path, handle: int) -> None:
    """Ends a lock and removes its file."""
    if not IS_WINDOWS:
        lock.unlink(missing_ok=True)  # as long as it is held: afterwards it may be another's
    HELD.remove(handle)
    os.close(handle)
    if IS_WINDOWS:
        with suppress(OSError):  # who has opened it meanwhile removes it
            lock.unlink(missing_ok=True)


def _forget_inherited() -> None:
    """Lets a forked process give up what it has of its parent's locks, which would outlive the parent in it."""
    while HELD:
        os.close(HELD.pop())


def _try(lock: Path) -> tuple[int | None, LockState]:
    """Tries once to get a lock; returns the open lock file if it is now held.

    Raises:
        OSError: if the lock file can't be made.
    """
    while True:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        state = _flock(handle)
        if state != "held":
            os.close(handle)
            return None, state
        if _is_at(handle, lock):
            return handle, "held"
        # The last holder removed the file after it was opened here, so this lock would keep nobody out.
        os.close(handle)


def _flock(handle: int) -> LockState:
    from filelock import lock_descriptor  # its import takes longer than all else that a site's request does

    try:
        return "held" if lock_descriptor(handle, blocking=False) else "busy"
    except OSError:
        return "unsupported"


def _is_at(handle: int, lock: Path) -> bool:
    """Whether the open file is still the one of that name."""
    if IS_WINDOWS:
        return True
    try:
        there = os.stat(lock)
    except OSError:
        return False
    return os.path.samestat(os.fstat(handle), there)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)
