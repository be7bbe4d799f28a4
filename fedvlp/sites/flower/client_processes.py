"""ClientApps without their start: a process that has imported Flower already forks for each message.

Flower starts an interpreter for each message, of whose 1 to 2 s nearly all are imports. A SuperNode finds the program
that it starts by its name on the path, so a script of that name hands the arguments to the process that is ready.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

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


def start(folder: Path) -> None:
    """Starts the process that is ready, and writes the script, which is to be found before Flower's own program.

    Must be called before this process has other threads, which a fork would not take along.

    Args:
        folder: open to this user alone; for the script and the socket to which it hands its arguments.
    """
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / SOCKET))
    server.listen(16)
    parent = os.getpid()
    if os.fork() == 0:
        _answer(server, parent)
    server.close()
    script = folder / COMMAND
    script.write_text(SCRIPT.format(python=sys.executable, path=str(folder / SOCKET)), encoding="utf-8")
    script.chmod(0o700)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", "")])


def _answer(server: socket.socket, parent: int) -> None:
    """Forks for whoever connects, until the SuperNode ends; never returns."""
    from flwr.supernode.cli import flwr_clientapp

    import fedvlp.sites.flower.client_app  # noqa: F401  (so that a fork has it)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    server.settimeout(SECONDS_BETWEEN_LOOKS)
    while os.getppid() == parent:
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a fork waits for what it starts
            with connection, connection.makefile("rb") as given:
                sys.argv = json.loads(given.read())
            server.close()
            try:
                flwr_clientapp()
            finally:
                os._exit(1)
        connection.close()
    os._exit(0)
