"""A TCP relay that counts bytes: it stands between a site and the server, and TLS passes through it unseen."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

from experiments.sites.credentials import HOST

RESET = struct.pack("ii", 1, 0)
"""Lingering for 0 s: what is closed is reset."""


class Relay:
    """Passes connections on to a server on this machine, until it is closed.

    Attributes:
        port: where it listens.
        up: bytes that went to the server so far.
        down: bytes that came from it.
        connections: how many there have been.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.up = 0
        self.down = 0
        self.connections = 0
        self._counting = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Takes no more connections; those that exist end with their two sides."""
        # A thread that waits in accept() is woken by this, and not by close() alone.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                site, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                server = socket.create_connection((HOST, self._target))
            except OSError:  # the server is away: refused, as by the server's own machine, and not ended in order
                site.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                site.close()
                continue
            self.connections += 1
            threading.Thread(target=self._pass, args=(site, server, "up"), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, site, "down"), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        """Passes bytes on until one side ends, and then ends the other."""
        with suppress(OSError):
            while chunk := source.recv(65536):
                with self._counting:
                    setattr(self, direction, getattr(self, direction) + len(chunk))
                target.sendall(chunk)
        for side in (source, target):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        source.close()
