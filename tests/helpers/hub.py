"""A stand-in of the Hugging Face hub on the loopback: it answers what the client asks of data sets and their files.

It keeps files in memory, counts what it sends, and can cut a connection, send something else than it announced, or ask
for a token.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.helpers.hub_address import ask_at

REVISION = "5" * 40


@dataclass
class Repository:
    """One repository.

    Attributes:
        name: ``owner/name``.
        files: contents by path.
        revision: its only commit.
        card: what its card says in machine-readable form.
        gated: whether files are sent only to those with a token.
        sent_instead: contents by path that are sent in place of those that are announced.
    """

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    revision: str = REVISION
    card: Mapping[str, Any] = field(default_factory=dict)
    gated: bool = False
    sent_instead: dict[str, bytes] = field(default_factory=dict)

    def info(self) -> dict[str, Any]:
        """What the hub says of the repository."""
        siblings = []
        for path, content in sorted(self.files.items()):
            lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            blob_id = hashlib.sha1(content).hexdigest()
            siblings.append({"rfilename": path, "size": len(content), "blobId": blob_id, "lfs": lfs})
        about = {"id": self.name, "sha": self.revision, "private": False, "disabled": False, "downloads": 0, "likes": 0}
        gated = "manual" if self.gated else False
        return {**about, "gated": gated, "tags": [], "cardData": dict(self.card), "siblings": siblings}


class Hub:
    """The stand-in.

    Attributes:
        repositories: what it has, by kind and name.
        tokens: those that open gated repositories.
        requests: what was asked, such as ``GET /api/datasets/a/b``.
        sent: bytes of each file that were sent, by path.
        bytes_left: after how many bytes of files each connection is cut; None for never.
        status: answers every question with this status, if it is not 0.
    """

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.tokens = {"hf_stand_in"}
        self.requests: list[str] = []
        self.sent: Counter[str] = Counter()
        self.bytes_left: int | None = None
        self.status = 0
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def add(self, repository: Repository) -> Repository:
        """Adds a repository, in place of one of that name."""
        self.repositories["datasets", repository.name] = repository
        return repository

    @contextmanager
    def serving(self) -> Iterator[Hub]:
        """Serves while the block runs."""
        thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def use_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the client in this process ask the stand-in, without a token and without waiting before it asks again."""
    from huggingface_hub.utils import _http

    ask_at(hub.address, monkeypatch)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(_http.time, "sleep", lambda seconds: None)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    hub: Hub
    protocol_version = "HTTP/1.1"
    # Else each answer would wait 40 ms between its head and its body.
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if self.hub.status:
            self._send(self.hub.status, b"", {})
        elif parts[0] == "api":  # api/datasets/owner/name/revision/commit
            repository = self._found("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main")
            if repository is not None:
                self._send(200, json.dumps(repository.info()).encode(), {"Content-Type": "application/json"})
        else:  # datasets/owner/name/resolve/commit/path
            self._file("/".join(parts[1:3]), parts[4], "/".join(parts[5:]))

    def _found(self, name: str, revision: str) -> Repository | None:
        """Returns a repository at a revision; says that there is none."""
        repository = self.hub.repositories.get(("datasets", name))
        if repository is None:
            self._refuse(401, "RepoNotFound")
        elif revision not in ("main", repository.revision):
            self._refuse(404, "RevisionNotFound")
            return None
        return repository

    def _file(self, name: str, revision: str, path: str) -> None:
        """Sends a file, or the part of it that is asked for."""
        repository = self._found(name, revision)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if repository is None:
            return
        if repository.gated and token not in self.hub.tokens:
            self._refuse(401, "GatedRepo")
            return
        digest = hashlib.sha256(repository.files[path]).hexdigest()
        headers = {"X-Repo-Commit": repository.revision, "ETag": f'"{digest}"'}
        content = repository.sent_instead.get(path, repository.files[path])
        wanted = self.headers.get("Range")
        if wanted is None:
            self._send(200, content, headers, path)
            return
        first, last = wanted.removeprefix("bytes=").split("-")
        end = min(int(last) + 1 if last else len(content), len(content))
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
        self._send(206, content[int(first) : end], headers, path)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, content: bytes, headers: Mapping[str, str], path: str = "") -> None:
        """Sends an answer; of a file only as much as may be sent before connections are cut."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        left = self.hub.bytes_left
        if path and left is not None:
            self.close_connection = left < len(content)
            content = content[:left]
            self.hub.bytes_left = left - len(content)
        if path:
            self.hub.sent[path] += len(content)
        self.wfile.write(content)
