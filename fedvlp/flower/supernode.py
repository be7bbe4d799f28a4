"""Flower's SuperNode that asks for messages twice a second, where Flower 1.41 waits 3 s: for rounds that take seconds.

``python -m fedvlp.flower.supernode`` takes the arguments of ``flower-supernode``.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

PAUSE = 0.5
"""The longest wait for the next message, in seconds."""
EXECUTOR_PAUSE = ("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.1")
"""Flower's own setting of how often it looks whether there is a ClientApp to start, 1 s unless it is given."""


def shorter(seconds: float) -> None:
    """Waits, but no longer than `PAUSE`."""
    time.sleep(min(seconds, PAUSE))


def main() -> None:
    """Runs the SuperNode, which ends the process with its own exit code."""
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.cli import flower_supernode

    os.environ.setdefault(*EXECUTOR_PAUSE)
    # There is no option for it. Sleeping is all that the loop uses of the module, and Flower's version is pinned.
    loop.time = SimpleNamespace(sleep=shorter)
    flower_supernode()


if __name__ == "__main__":
    main()
