"""Which processes of a run still answer, asked by those that noticed that one does not."""

from __future__ import annotations

import socket
import threading
import time
from datetime import timedelta

import torch.distributed

SECONDS = 4.0
"""How long others may take to report. They notice at about the same time, as broken connections close."""
SECONDS_OF_HOST = 2.0
"""How much longer rank 0 stays, through whose process others report."""
PAUSE = 0.05


def silent_ranks(address: str, port: int, rank: int, world_size: int) -> list[int]:
    """Reports this process, and returns the ranks of those that do not.

    Args:
        address: of the machine through which processes met.
        port: likewise.
        rank: of this process.
        world_size: number of processes.
    """
    present: set[int] = set()
    # The store may be in a stopped process, for which C++ would wait: so a thread asks, and is left alone.
    caller = threading.Thread(target=_call, args=(address, port, rank, world_size, present), daemon=True)
    caller.start()
    caller.join(SECONDS + PAUSE)
    if not present:
        return [0] if rank else []
    if not rank and len(present) > 1:
        time.sleep(SECONDS_OF_HOST)
    return [other for other in range(world_size) if other not in present]


def _call(address: str, port: int, rank: int, world_size: int, present: set[int]) -> None:
    """Adds the ranks that report to ``present``, until all have or time is up."""
    end = time.monotonic() + SECONDS
    try:
        socket.create_connection((address, port), SECONDS).close()  # PyTorch would try for longer, and aloud
        store = torch.distributed.TCPStore(address, port, timeout=timedelta(seconds=SECONDS), wait_for_workers=False)  # type: ignore[attr-defined]
        store.set(_key(rank), "here")
        while len(present) < world_size and time.monotonic() < end:
            present |= {other for other in range(world_size) if store.check([_key(other)])}
            time.sleep(PAUSE)
    except (OSError, RuntimeError):  # the process that had the store is gone
        return


def _key(rank: int) -> str:
    return f"fedvlp/noticed/{rank}"
