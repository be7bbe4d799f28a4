"""The Unix socket of a site's warm process: in a folder that only its user can open, with one message each way."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
import tempfile
from pathlib import Path

from fedvlp.sites.envelope import MOST_BYTES
from fedvlp.utils.errors import UserError

FOLDER = "warm"
LONGEST_PATH = 100  # bytes; systems take 104 or 108
LENGTH = struct.Struct(">Q")
CREDENTIALS = struct.Struct("3i")  # process, user, group
PIECE = 1 << 20

REQUEST = b"R"
STATUS = b"S"
STOP = b"X"
"""What a message to the warm process is: one of the server's, or one of the site's own user."""


def socket_folder(home: Path) -> Path:
    """Returns the folder of a site's socket, lock and log; makes it, open to its user alone.

    A path that is too long for a socket has its folder among the temporary ones.

    Args:
        home: the site's folder.

    Raises:
        UserError: if there is something else in its place, or others can open it, or Python has no such sockets here.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise UserError("The process of a site answers at a Unix socket, which Python has on Linux and macOS alone.")
    folder = home.resolve() / FOLDER
    if len(os.fsencode(folder / "socket")) > LONGEST_PATH:
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"fedvlp-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    is_open = bool(stat.S_IMODE(found.st_mode) & 0o077)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or is_open:
        raise UserError(f"Expected {folder} to be a folder that only this user can open. Remove it, or chmod 700 it.")
    return folder


def listening(path: Path) -> socket.socket:
    """Returns a socket that listens at a path, open to its user alone; what a dead process left there is removed."""
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # from the first moment on, and not only after a chmod
    try:
        server.bind(str(path))
    finally:
        os.umask(before)
    server.listen(16)
    return server


def is_of_this_user(connection: socket.socket) -> bool:
    """Whether who has connected is this process's user; where no system call tells, the folder keeps others out."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    user: int = CREDENTIALS.unpack(found)[1]
    return user == os.getuid()


def send(connection: socket.socket, content: bytes) -> None:
    """Sends a message.

    Raises:
        OSError: if the other side is gone.
    """
    connection.sendall(LENGTH.pack(len(content)))
    connection.sendall(content)


def receive(connection: socket.socket) -> bytes:
    """Returns the next message.

    Raises:
        EOFError: if the other side ends before it is whole, or it is larger than any message.
        OSError: if it does not come in time.
    """
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
    if length > MOST_BYTES + 1:
        raise EOFError("the message is larger than any of ours")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        piece = connection.recv(min(PIECE, count - len(content)))
        if not piece:
            raise EOFError("the other side has gone")
        content += piece
    return bytes(content)
