"""A limit on the seconds of one client, which ends what never would."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fedvlp.training.failures import ClientError
from fedvlp.utils.errors import UserError

AGAIN = 1.0
"""Seconds after which code that caught the first exception gets another."""


def check_time_limit(seconds: float | None) -> None:
    """Checks that a limit can be kept here.

    Raises:
        UserError: if the system has no timers of a process, or this is not its main thread.
    """
    if seconds is None:
        return
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        raise UserError(
            "client_timeout is kept by a timer that interrupts the main thread, which needs Linux or macOS and "
            "training in that thread. Leave it out here."
        )


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Lets what runs inside take only so long; without a limit where it is None.

    A timer interrupts Python between two instructions, and calls of the system such as a sleep or a read; a single
    operation on tensors is let finish.

    Raises:
        ClientError: if it takes longer.
    """
    if seconds is None:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise ClientError(f"took longer than client_timeout of {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:  # once more, as the timer may have interrupted the line above
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
