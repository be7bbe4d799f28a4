"""The warm process of a site, which keeps method, images and features between requests, and its callers.

``send_request`` starts the process if none runs: ``python -m fedvlp.sites.daemon HOME``. Only this process imports
PyTorch, since the caller is a process of one message.
"""

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
SECONDS_TO_SEND = 30.0  # for a caller on this machine
log = logging.getLogger(__name__)


def send_request(home: Path, request: bytes) -> bytes:
    """Pass a request to the warm process of a site, started if none runs; return its reply or why there is none.

    Raises:
        UserError: If the folder is no site's.
    """
    name = read_site_config(home).name
    # An idle process may be about to end; then the second try starts a new one.
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
    """Start the warm process of a site, unless it runs, and return once it listens.

    Raises:
        UserError: If the folder is no site's, or the process does not start.
    """
    try:
        _connection(home).close()
    except OSError as error:
        raise UserError(f"The site's process does not start. {warm_folder(home) / LOG} says why.") from error


def site_status(home: Path) -> dict[str, Any]:
    """Read the ``state`` of a site's process, ``stopped``, ``idle`` or ``busy``, its id and ``answered`` requests."""
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
    """End the warm process of a site, also in the middle of a round; return whether there was one."""
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
    """Make the folder of a site's socket, lock, status and log, which only its user can open.

    If the path is too long for a socket, the folder is among the temporary ones.

    Raises:
        UserError: If there is something else in its place, or others can open it, or the system has no Unix sockets.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise UserError("The process of a site answers at a Unix socket, which only Linux and macOS have.")
    folder = home.resolve() / FOLDER
    if len(os.fsencode(folder / SOCKET)) > LONGEST_PATH:
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"fedvlp-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # Only the folder's rights keep other users from the socket.
    status = folder.lstat()
    is_open = bool(stat.S_IMODE(status.st_mode) & 0o077)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or is_open:
        raise UserError(f"Expected {folder} to be a folder that only this user can open. Remove it, or chmod 700 it.")
    return folder


def _connection(home: Path) -> Connection:
    """Connect to the warm process, which is started if none listens, or raise an OSError."""
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
    """Start the process in the background; return whether it or another listens."""
    # The process must import the caller's package.
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
    """Answer requests sequentially until none has come for ``idle_seconds``; ``report`` the state and their number."""
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
                    # Before the reply is sent, so that its receiver does not read that the process is busy.
                    report("idle", answered)
                    connection.send_bytes(reply)
            except (OSError, EOFError) as error:
                # The caller has died or only connected, or the ledger can't be written.
                log.info("No reply was sent: %s", error)


def serve_site(home: Path, is_ready: Callable[[], None]) -> None:
    """Answer for a site until no request has come for a while; return at once if another process does.

    ``is_ready`` is called once this process or the other listens.
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
            # Before the imports, which take seconds; from here on the caller waits for the reply.
            is_ready()
            from fedvlp.sites.worker import Site

            answer(server, Site(home).handle, 60 * config.idle_minutes, report)
            # Later callers find no socket and start another process, which waits for the lock.
            path.unlink()
    except BlockingIOError:
        log.info("Another process answers for %s.", home)
        is_ready()


def main(home: Path) -> int:
    """Fork a process that answers for a site; return the exit code, 0 once one listens."""
    # The parent ends once the child listens, so the caller knows when to connect and has no child to wait for.
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        return 0 if os.read(read_end, 1) else 1
    os.close(read_end)
    os.setsid()  # outlives its caller and terminal
    os.umask(0o077)  # features and personal tensors are for its user only

    def is_ready() -> None:
        os.write(write_end, b"1")
        os.close(write_end)

    serve_site(home, is_ready)
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    sys.exit(main(Path(sys.argv[1])))
