"""The warm process of a site, which keeps method, images and features between requests, and its callers.

``send_request`` starts the process with ``python -m fedvlp.sites.daemon HOME`` unless it runs. Only the warm process
imports PyTorch, because Flower starts a caller for each message.
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
MAX_PATH_BYTES = 100  # of a socket's path; systems allow 104 or 108
SECONDS_TO_START = 120.0
SECONDS_TO_STOP = 10.0
SECONDS_BETWEEN_TRIES = 0.05
SECONDS_TO_SEND = 30.0  # for a caller on this machine
log = logging.getLogger(__name__)


def send_request(home: Path, request: bytes) -> bytes:
    """Pass a request to a site's warm process, starting it if necessary; return its reply or a failure message.

    Raises:
        UserError: If the folder is not a site's home.
    """
    name = read_site_config(home).name
    # If an idle process is about to end, the second try starts a new one.
    for _ in range(2):
        try:
            connection = _connection(home)
        except OSError:
            return failure(name, "can't start its warm process; see the site's log")
        with connection, suppress(OSError, EOFError):
            connection.send_bytes(request)
            return connection.recv_bytes(MAX_BYTES)
    return failure(name, "has a warm process that ended twice before it answered; see the site's log")


def start_site(home: Path) -> None:
    """Start the warm process of a site unless it runs, and return once it listens.

    Raises:
        UserError: If the folder is not a site's home, or the process does not start.
    """
    try:
        _connection(home).close()
    except OSError as error:
        raise UserError(f"The site's process does not start. See {warm_folder(home) / LOG}.") from error


def site_status(home: Path) -> dict[str, Any]:
    """Read the ``state`` of a site's process (``stopped``, ``idle`` or ``busy``), its id and ``answered`` requests."""
    read_site_config(home)
    folder = warm_folder(home)
    if not is_locked(folder / SOCKET):
        return {"state": "stopped"}
    try:
        status: dict[str, Any] = json.loads((folder / STATUS).read_text(encoding="utf-8"))
        return status
    except (OSError, ValueError):
        # The process holds the lock already and is about to write the file.
        return {"state": "busy"}


def stop_site(home: Path) -> bool:
    """End the warm process of a site, even in the middle of a round; return whether there was one."""
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
    """Create the folder for a site's socket, lock, status and log, accessible only to its user.

    If the path is too long for a socket, the folder is created in the system's temporary folder.

    Raises:
        UserError: If the path is not such a folder, others can access it, or the system has no Unix sockets.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise UserError("Sites need Unix sockets, which only Linux and macOS have. Run the site there.")
    folder = home.resolve() / FOLDER
    if len(os.fsencode(folder / SOCKET)) > MAX_PATH_BYTES:
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"fedvlp-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # Only the folder's permissions protect the socket from other users.
    status = folder.lstat()
    is_open = bool(stat.S_IMODE(status.st_mode) & 0o077)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or is_open:
        raise UserError(f"Expected {folder} to be a folder that only this user can access. Remove it, or chmod 700 it.")
    return folder


def _connection(home: Path) -> Connection:
    """Connect to the warm process, starting it if none listens, or raise an OSError."""
    read_site_config(home)
    folder = warm_folder(home)
    deadline = time.monotonic() + SECONDS_TO_START
    while True:
        try:
            return Client(str(folder / SOCKET), family="AF_UNIX")
        except OSError:
            if not _start(home, folder) or time.monotonic() > deadline:
                raise
        # No socket: another process holds the lock and is about to end.
        if not (folder / SOCKET).exists():
            time.sleep(SECONDS_BETWEEN_TRIES)


def _start(home: Path, folder: Path) -> bool:
    """Start the process in the background; return whether it or another process listens."""
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
    """Answer requests sequentially until none arrives for ``idle_seconds``; ``report`` the state and their number."""
    answered = 0
    server.settimeout(idle_seconds)
    report("idle", answered)
    while True:
        try:
            accepted, _ = server.accept()
        except TimeoutError:
            return
        # Connection frames the bytes; only its methods for objects would pickle.
        with Connection(accepted.detach()) as connection:
            try:
                if connection.poll(SECONDS_TO_SEND):
                    request = connection.recv_bytes(MAX_BYTES)
                    report("busy", answered)
                    reply = handle(request)
                    answered += 1
                    # Reported before replying, so that the receiver does not find the process busy.
                    report("idle", answered)
                    connection.send_bytes(reply)
            except (OSError, EOFError) as error:
                # The caller ended or sent nothing, or the ledger can't be written.
                log.info("No reply was sent: %s", error)


def serve_site(home: Path, notify_ready: Callable[[], None]) -> None:
    """Answer for a site until no request arrives for a while; return immediately if another process does so already.

    ``notify_ready`` is called once this or the other process listens.
    """
    config = read_site_config(home)
    path = warm_folder(home) / SOCKET

    def report(state: str, answered: int) -> None:
        status = {"state": state, "process": os.getpid(), "answered": answered}
        write_text(path.with_name(STATUS), json.dumps(status))

    try:
        with locked(path, wait=False), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            # A killed process leaves its socket behind, but never the lock.
            path.unlink(missing_ok=True)
            report("busy", 0)
            server.bind(str(path))
            server.listen(16)
            # Called before the imports, which take seconds; the caller then waits for the reply.
            notify_ready()
            from fedvlp.sites.worker import Site

            answer(server, Site(home).handle, 60 * config.idle_minutes, report)
            # Without the socket, later callers start another process, which waits for the lock.
            path.unlink()
    except BlockingIOError:
        log.info("Another process answers for %s.", home)
        notify_ready()


def main(home: Path) -> int:
    """Fork a process that answers for a site; return the exit code, 0 once a process listens."""
    # The parent exits once the child listens, so the caller knows when to connect and need not wait for the child.
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        return 0 if os.read(read_end, 1) else 1
    os.close(read_end)
    os.setsid()  # outlives its caller and terminal
    os.umask(0o077)  # only its user may read features and personal tensors

    def notify_ready() -> None:
        os.write(write_end, b"1")
        os.close(write_end)

    serve_site(home, notify_ready)
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    sys.exit(main(Path(sys.argv[1])))
