"""Flower's SuperNode for rounds that take seconds: asks for messages twice a second, and is ready to answer them.

Flower 1.41 asks every 3 s and starts an interpreter for each message, of whose 1 to 2 s nearly all are imports.
``python -m fedvlp.sites.flower.supernode`` takes the arguments of ``flower-supernode``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

PAUSE = 0.5  # the longest wait for the next message, in seconds
EXECUTOR_PAUSE = ("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.1")  # between looks for ClientApps to start; Flower's is 1 s
COMMAND = "flwr-clientapp"
SOCKET = "socket"
SECONDS_BETWEEN_LOOKS = 1.0  # whether the SuperNode still lives
SCRIPT = """\
#!{python} -IS
import json, socket, sys
with socket.socket(socket.AF_UNIX) as there:
    there.connect({path!r})
    there.sendall(json.dumps(sys.argv).encode())
"""


def main() -> None:
    """Runs the SuperNode, which ends the process with its own exit code."""
    with tempfile.TemporaryDirectory(prefix="fedvlp-") as folder:
        # First, while this process has one thread: a fork takes no other along.
        start_ready_process(Path(folder))
        from flwr.supernode import start_client_internal as loop
        from flwr.supernode.cli import flower_supernode

        os.environ.setdefault(*EXECUTOR_PAUSE)
        # There is no option for it. Sleeping is all that the loop uses of the module, and Flower's version is pinned.
        loop.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, PAUSE)))
        flower_supernode()


def start_ready_process(folder: Path) -> None:
    """Starts a process that has imported Flower already and forks for each message.

    A SuperNode finds the program that it starts by its name on the path, so a script of that name hands the arguments
    to the process that is ready. Must be called before this process has other threads, which a fork would not take
    along.

    Args:
        folder: open to this user alone; for the script and the socket to which it hands its arguments.
    """
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / SOCKET))
    server.listen(16)
    parent = os.getpid()
    if os.fork() == 0:
        _fork_for_each(server, parent)
    server.close()
    script = folder / COMMAND
    script.write_text(SCRIPT.format(python=sys.executable, path=str(folder / SOCKET)), encoding="utf-8")
    script.chmod(0o700)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", "")])


def _fork_for_each(server: socket.socket, parent: int) -> None:
    """Forks for each script that connects, until the SuperNode ends; never returns."""
    from flwr.supernode.cli import flwr_clientapp

    import fedvlp.sites.flower.client_app  # noqa: F401  (so that a fork has it)

    # No one waits for the forks, which would stay as zombies.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server.settimeout(SECONDS_BETWEEN_LOOKS)
    # A process whose parent has ended gets another one.
    while os.getppid() == parent:
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a fork waits for what it starts
            with connection, connection.makefile("rb") as words:
                sys.argv = json.loads(words.read())
            server.close()
            try:
                flwr_clientapp()
            finally:
                os._exit(1)
        connection.close()
    os._exit(0)


if __name__ == "__main__":
    main()
