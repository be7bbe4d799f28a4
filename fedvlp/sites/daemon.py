"""The warm process of a site: keeps method, images and features, and answers one request after another.

``python -m fedvlp.sites.daemon HOME`` runs it; ``ask_site`` starts it where none runs.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedvlp.sites.local_socket import REQUEST, STATUS, STOP, is_of_this_user, listening, receive, send, socket_folder
from fedvlp.sites.site_config import read_site_config
from fedvlp.utils.files import locked

SOCKET = "socket"
PROCESS = "process"
LOG = "log.txt"
SECONDS_TO_SAY = 30.0
"""How long who has connected may take to hand over its request, which is on this machine."""
log = logging.getLogger(__name__)


class Daemon:
    """Answers at a socket until nobody has asked anything for a while.

    Args:
        server: listens.
        handle: from a request to its reply.
        idle_seconds: how long nobody may ask anything.
        is_last: called when the time is over; what connects after it finds another process.
    """

    def __init__(
        self,
        server: socket.socket,
        handle: Callable[[bytes], bytes],
        idle_seconds: float,
        is_last: Callable[[], None],
    ) -> None:
        self.server = server
        self.handle = handle
        self.idle_seconds = idle_seconds
        self.is_last = is_last
        self.is_stopped = False
        self.answered = 0

    def run(self) -> None:
        """Answers until it is stopped, or idle for too long."""
        self.server.settimeout(self.idle_seconds)
        with suppress(TimeoutError):
            while not self.is_stopped:
                self._answer_next()
        self.is_last()
        # Who connected in the last moment has not been answered yet, and would take this process for dead.
        self.server.settimeout(0)
        with suppress(BlockingIOError):
            while True:
                self._answer_next()

    def _answer_next(self) -> None:
        connection, _ = self.server.accept()
        with connection:
            if not is_of_this_user(connection):
                return
            connection.settimeout(SECONDS_TO_SAY)
            try:
                reply = self._reply(receive(connection))
                connection.settimeout(SECONDS_TO_SAY)
                send(connection, reply)
            except (OSError, EOFError) as error:  # who asked has died, or only looked; the site lives on
                log.debug("Who asked is gone: %s", error)

    def _reply(self, content: bytes) -> bytes:
        kind = content[:1]
        if kind == REQUEST:
            self.answered += 1
            return self.handle(content[1:])
        if kind == STOP:
            self.is_stopped = True
        return (
            json.dumps({"process": os.getpid(), "answered": self.answered}).encode() if kind in (STATUS, STOP) else b""
        )


def serve_site(home: Path, is_ready: Callable[[], None]) -> None:
    """Answers for a site until nobody has asked for a while; returns at once if another process does.

    Args:
        home: the site's folder.
        is_ready: called once a process listens, this one or the other.
    """
    config = read_site_config(home)
    folder = socket_folder(home)
    try:
        with locked(folder / SOCKET, wait=False):
            (folder / PROCESS).write_text(str(os.getpid()))
            with listening(folder / SOCKET) as server:
                is_ready()  # before the long imports: who asks waits for the reply alone
                without_figures()
                from fedvlp.sites.site import Site

                handle = Site(home).handle
                Daemon(server, handle, 60 * config.idle_minutes, (folder / SOCKET).unlink).run()
    except BlockingIOError:
        log.info("Another process answers for %s.", home)
        is_ready()


def main(home: Path) -> int:
    """Lets a process of its own answer for a site; returns the exit code, 0 once one listens.

    Args:
        home: the site's folder.
    """
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        return 0 if os.read(read_end, 1) else 1
    os.close(read_end)
    os.setsid()  # so that it outlives who asked, and is not ended with its terminal

    def is_ready() -> None:
        os.write(write_end, b"1")
        os.close(write_end)

    serve_site(home, is_ready)
    return 0


def without_figures() -> None:
    """Keeps figures and trackers out of this process, which other packages import wherever they are installed."""
    from lightning_utilities.core.imports import RequirementCache

    unwanted = ("matplotlib", "wandb")
    for name in unwanted:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    is_installed = RequirementCache.__bool__

    def is_wanted(cache: RequirementCache) -> bool:
        return cache.requirement not in unwanted and is_installed(cache)

    RequirementCache.__bool__ = is_wanted  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    sys.exit(main(Path(sys.argv[1])))
