"""Asks the warm process of a site, and starts it where none runs. Runs for each message, so it imports no PyTorch."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedvlp.sites.daemon import LOG, PROCESS, SOCKET
from fedvlp.sites.envelope import failure
from fedvlp.sites.local_socket import REQUEST, STATUS, STOP, receive, send, socket_folder
from fedvlp.sites.site_config import read_site_config
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import is_locked

SECONDS_TO_START = 120.0
SECONDS_BETWEEN_TRIES = 0.05
SECONDS_FOR_STATUS = 2.0
SECONDS_TO_STOP = 10.0


def ask_site(home: Path, request: bytes) -> bytes:
    """Passes a request to the warm process of a site and returns its reply; starts the process if none runs.

    Args:
        home: the site's folder, with ``site.yaml``.
        request: as it came from the server.

    Returns:
        The reply; one that says why, where the process could not answer.

    Raises:
        UserError: if the folder is no site's.
    """
    for _ in range(2):  # the process that was there may have been about to die, and a new one answers
        try:
            connection = _connection(home)
        except OSError:
            return failure("can't start its warm process; its log says why")
        with connection, suppress(OSError, EOFError):
            send(connection, REQUEST + request)
            return receive(connection)
    return failure("has a warm process that ended twice before it answered; its log may say why")


def start_site(home: Path) -> None:
    """Starts the warm process of a site, unless it runs, and returns once it listens.

    Args:
        home: the site's folder.

    Raises:
        UserError: if the folder is no site's, or the process does not start.
    """
    try:
        _connection(home).close()
    except OSError as error:
        log = socket_folder(home) / LOG
        raise UserError(f"The site's process does not start. {log} says why.") from error


def site_status(home: Path) -> dict[str, Any]:
    """Returns what is known of a site's warm process.

    Returns:
        ``state``: ``stopped``, ``idle`` or ``busy``; and ``process`` and ``answered`` requests, where they are known.

    Raises:
        UserError: if the folder is no site's.
    """
    read_site_config(home)
    folder = socket_folder(home)
    if not is_locked(folder / SOCKET):
        return {"state": "stopped"}
    found = _told(folder, STATUS)
    return {"state": "busy", "process": _process(folder)} if found is None else {"state": "idle", **found}


def stop_site(home: Path) -> bool:
    """Ends the warm process of a site, also one that is at work; whether there was one.

    Raises:
        UserError: if the folder is no site's.
    """
    read_site_config(home)
    folder = socket_folder(home)
    if not is_locked(folder / SOCKET):
        return False
    process = _process(folder)
    if _told(folder, STOP) is None and process is not None:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
    deadline = time.monotonic() + SECONDS_TO_STOP
    while is_locked(folder / SOCKET) and time.monotonic() < deadline:
        time.sleep(SECONDS_BETWEEN_TRIES)
    return True


def _connection(home: Path) -> socket.socket:
    """Returns a connection to the warm process, which is started where none listens.

    Raises:
        UserError: if the folder is no site's.
        OSError: if the process can't be started.
    """
    read_site_config(home)
    folder = socket_folder(home)
    deadline = time.monotonic() + SECONDS_TO_START
    while True:
        try:
            return _connected(folder)
        except OSError:
            if not _started(home, folder) or time.monotonic() > deadline:
                raise
        if not (folder / SOCKET).exists():  # the one at work is about to end
            time.sleep(SECONDS_BETWEEN_TRIES)


def _started(home: Path, folder: Path) -> bool:
    """Starts the process, which goes on in the background; whether it, or another one, now listens or did so."""
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join([package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    with open(folder / LOG, "ab") as log:
        found = subprocess.run(
            [sys.executable, "-m", "fedvlp.sites.daemon", str(home.resolve())],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        )
    return found.returncode == 0


def _connected(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(folder / SOCKET))
    except OSError:
        connection.close()
        raise
    return connection


def _told(folder: Path, word: bytes) -> dict[str, Any] | None:
    """Returns what the process answers to a word of its own user; None if it is at work, or gone."""
    try:
        with _connected(folder) as connection:
            connection.settimeout(SECONDS_FOR_STATUS)
            send(connection, word)
            found: dict[str, Any] = json.loads(receive(connection))
            return found
    except (OSError, EOFError, ValueError):
        return None


def _process(folder: Path) -> int | None:
    try:
        return int((folder / PROCESS).read_text())
    except (OSError, ValueError):
        return None
