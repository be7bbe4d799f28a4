"""The warm process of a site, which keeps method, images and features between requests; and who passes requests to it.

``send_request`` starts the process where none runs: ``python -m fedvlp.sites.daemon HOME``. The caller is itself a
process of one message, so PyTorch is imported in the warm process alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from fedvlp.sites.site_config import read_site_config
from fedvlp.sites.wire import MAX_BYTES, failure
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import is_locked, locked, write_text

FOLDER = "warm"
SOCKET = "socket"
STATUS = "status.json"
LOG = "log.txt"
LONGEST_PATH = 100  # bytes of a socket's path; systems take 104 or 108
SECONDS_TO_START = 120.0
SECONDS_TO_STOP = 10.0
SECONDS_BETWEEN_TRIES = 0.05
SECONDS_TO_SEND = 30.0
"""How long a caller may take to hand over its request, which is on this machine."""
log = logging.getLogger(__name__)


def send_request(home: Path, request: bytes) -> bytes:
    """Passes a request to the warm process of a site, started if none runs, and returns its reply.

    Where the process could not answer, the reply says why.

    Raises:
        UserError: if the folder is no site's.
    """
    name = read_site_config(home).name
    # The process that is there may be about to end, being idle; then the second try starts a new one.
    for _ in range(2):
        try:
            connection = _connection(home)
        except OSError:
            return failure(name, "can't start its warm process; its log says why")
        with connection, suppress(OSError, EOFError):
            connection.send_bytes(request)
            return connection.recv_bytes(MAX_BYTES)
    return failure(name, "has a warm process that ended twice before it answered; its log may say why")


def start_site(home: Path) -> None:
    """Starts the warm process of a site, unless it runs, and returns once it listens.

    Raises:
        UserError: if the folder is no site's, or the process does not start.
    """
    try:
        _connection(home).close()
    except OSError as error:
        raise UserError(f"The site's process does not start. {warm_folder(home) / LOG} says why.") from error


def site_status(home: Path) -> dict[str, Any]:
    """The ``state`` of a site's warm process, ``stopped``, ``idle`` or ``busy``, its id and ``answered`` requests."""
    read_site_config(home)
    folder = warm_folder(home)
    if not is_locked(folder / SOCKET):
        return {"state": "stopped"}
    try:
        status: dict[str, Any] = json.loads((folder / STATUS).read_text(encoding="utf-8"))
        return status
    except (OSError, ValueError):
        # It holds the lock already and is about to write the file.
        return {"state": "busy"}


def stop_site(home: Path) -> bool:
    """Ends the warm process of a site, also one that is at work; whether there was one."""
    # A signal also ends a process in the middle of a round; files at the site are written whole or not at all.
    process = site_status(home).get("process")
    if process is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
    deadline = time.monotonic() + SECONDS_TO_STOP
    while is_locked(warm_folder(home) / SOCKET) and time.monotonic() < deadline:
        time.sleep(SECONDS_BETWEEN_TRIES)
    return True


def warm_folder(home: Path) -> Path:
    """The folder of a site's socket, lock, status and log; made if it is missing, open to its user alone.

    A path that is too long for a socket has its folder among the temporary ones.

    Raises:
        UserError: if there is something else in its place, or others can open it, or Python has no such sockets here.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise UserError("The process of a site answers at a Unix socket, which Python has on Linux and macOS alone.")
    folder = home.resolve() / FOLDER
    # A socket's path is short on every system, and homes may be deep below others.
    if len(os.fsencode(folder / SOCKET)) > LONGEST_PATH:
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"fedvlp-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # The folder's rights are what keeps other users from the socket, so one that somebody else made is no good.
    status = folder.lstat()
    is_open = bool(stat.S_IMODE(status.st_mode) & 0o077)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or is_open:
        raise UserError(f"Expected {folder} to be a folder that only this user can open. Remove it, or chmod 700 it.")
    return folder


def _connection(home: Path) -> Connection:
    """Connects to the warm process, which is started where none listens; an OSError if it can't be started."""
    read_site_config(home)
    folder = warm_folder(home)
    deadline = time.monotonic() + SECONDS_TO_START
    while True:
        try:
            return Client(str(folder / SOCKET), family="AF_UNIX")
        except OSError:
            if not _start(home, folder) or time.monotonic() > deadline:
                raise
        # No socket: the process that held the lock when another was started is about to end.
        if not (folder / SOCKET).exists():
            time.sleep(SECONDS_BETWEEN_TRIES)


def _start(home: Path, folder: Path) -> bool:
    """Starts the process, which continues in the background; whether one, this or another, listens or did so."""
    # The process must import this very package, from wherever the caller has it.
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join([package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    with open(folder / LOG, "ab") as log_file:
        finished = subprocess.run(
            [sys.executable, "-m", "fedvlp.sites.daemon", str(home.resolve())],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            check=False,
        )
    return finished.returncode == 0


def answer(
    server: socket.socket,
    handle: Callable[[bytes], bytes],
    idle_seconds: float,
    report: Callable[[str, int], None],
) -> None:
    """Answers requests sequentially, until none has come for ``idle_seconds``.

    Calls ``report`` whenever the state changes, with ``idle`` or ``busy`` and the number of answered requests.
    """
    answered = 0
    server.settimeout(idle_seconds)
    report("idle", answered)
    while True:
        try:
            accepted, _ = server.accept()
        except TimeoutError:
            return
        # The standard library's connection frames the bytes; only its send of objects would pickle.
        with Connection(accepted.detach()) as connection:
            try:
                if connection.poll(SECONDS_TO_SEND):
                    request = connection.recv_bytes(MAX_BYTES)
                    report("busy", answered)
                    reply = handle(request)
                    answered += 1
                    # Before the reply is sent: who has it must not read that the process is busy.
                    report("idle", answered)
                    connection.send_bytes(reply)
            except (OSError, EOFError) as error:
                # The caller has died or only looked, or the ledger can't be written; the site lives on.
                log.info("No reply was sent: %s", error)


def serve_site(home: Path, is_ready: Callable[[], None]) -> None:
    """Answers for a site until no request has come for a while; returns at once if another process does.

    Calls ``is_ready`` once a process listens, this one or the other.
    """
    config = read_site_config(home)
    path = warm_folder(home) / SOCKET

    def report(state: str, answered: int) -> None:
        status = {"state": state, "process": os.getpid(), "answered": answered}
        write_text(path.with_name(STATUS), json.dumps(status))

    try:
        with locked(path, wait=False), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            # A process that was killed leaves its socket behind, but never the lock.
            path.unlink(missing_ok=True)
            report("busy", 0)
            server.bind(str(path))
            server.listen(16)
            # Before the imports, which take seconds: from here on the caller waits for the reply, however long.
            is_ready()
            from fedvlp.sites.worker import Site

            answer(server, Site(home).handle, 60 * config.idle_minutes, report)
            # Who connects from now on finds no socket and starts another process, which waits for the lock.
            path.unlink()
    except BlockingIOError:
        log.info("Another process answers for %s.", home)
        is_ready()


def main(home: Path) -> int:
    """Makes a process of its own that answers for a site; returns the exit code, 0 once one listens."""
    # The parent ends once the child listens, so whoever started it knows when to connect and has no child to wait for.
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        return 0 if os.read(read_end, 1) else 1
    os.close(read_end)
    # A session of its own, so that it outlives its caller, and is not ended with its terminal.
    os.setsid()
    # What it writes at the site tells of images, such as features and personal tensors, and is its user's alone.
    os.umask(0o077)

    def is_ready() -> None:
        os.write(write_end, b"1")
        os.close(write_end)

    serve_site(home, is_ready)
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    sys.exit(main(Path(sys.argv[1])))
