"""Flower's SuperNode for rounds that take seconds: asks for messages twice a second, and is ready to answer them.

Flower 1.41 asks every 3 s and starts an interpreter for each message.
``python -m fedvlp.sites.flower.supernode`` takes the arguments of ``flower-supernode``.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from fedvlp.sites.flower.client_processes import start

PAUSE = 0.5  # the longest wait for the next message, in seconds
EXECUTOR_PAUSE = ("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.1")  # between looks for ClientApps to start; Flower's is 1 s


def shorter(seconds: float) -> None:
    """Waits, but no longer than `PAUSE`."""
    time.sleep(min(seconds, PAUSE))


def main() -> None:
    """Runs the SuperNode, which ends the process with its own exit code."""
    with tempfile.TemporaryDirectory(prefix="fedvlp-") as folder:
        start(Path(folder))
        _run()


def _run() -> None:
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.cli import flower_supernode

    os.environ.setdefault(*EXECUTOR_PAUSE)
    # There is no option for it. Sleeping is all that the loop uses of the module, and Flower's version is pinned.
    loop.time = SimpleNamespace(sleep=shorter)
    flower_supernode()


if __name__ == "__main__":
    main()
