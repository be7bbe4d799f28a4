"""A TCP relay between a site and the server that counts bytes; TLS passes through unread."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from contextlib import suppress

from experiments.sites.credentials import HOST, Certificates

RESET = struct.pack("ii", 1, 0)
"""Linger for 0 s, so that closing resets the connection."""


class Relay:
    """Relay of connections to a server on this machine, until it is closed.

    Attributes:
        port: Port for connections.
        up: Bytes sent to the server so far.
        down: Bytes received from the server so far.
        connections: Number of connections so far.
        delay: Seconds by which everything is delayed.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.up = 0
        self.down = 0
        self.connections = 0
        self.delay = 0.0
        self._sides: list[socket.socket] = []
        self._certificates: Certificates | None = None
        self._counting = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no further connections; existing connections end with their two sides."""
        # This wakes up a thread that waits in accept(), unlike close().
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def drop(self) -> None:
        """End all connections."""
        for side in self._sides:
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        self._sides.clear()

    def answer_error(self, certificates: Certificates) -> None:
        """End all connections, and answer one request with status 500 in the server's name."""
        self._certificates = certificates
        self.drop()

    def _refuse(self, site: socket.socket, certificates: Certificates) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.server, certificates.server_key)
        with suppress(OSError), context.wrap_socket(site, server_side=True) as secure:
            secure.recv(65536)
            secure.sendall(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    def _accept(self) -> None:
        while True:
            try:
                site, _ = self._listener.accept()
            except OSError:  # closed
                return
            if self._certificates is not None:
                threading.Thread(target=self._refuse, args=(site, self._certificates), daemon=True).start()
                self._certificates = None
                continue
            try:
                server = socket.create_connection((HOST, self._target))
            except OSError:  # the server is down: reset the connection, as the server's machine would
                site.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                site.close()
                continue
            self.connections += 1
            self._sides += [site, server]
            threading.Thread(target=self._pass, args=(site, server, "up"), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, site, "down"), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        """Forward bytes until one side ends, and then end the other side."""
        with suppress(OSError):
            while chunk := source.recv(65536):
                with self._counting:
                    setattr(self, direction, getattr(self, direction) + len(chunk))
                time.sleep(self.delay)
                target.sendall(chunk)
        for side in (source, target):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        source.close()
