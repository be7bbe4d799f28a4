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


class Hub(ThreadingHTTPServer):
    """The hub of data sets.

    Attributes:
        address: where it answers.
        requests: method and path of each request.
        status: what every question is answered with, where it is not 200.
        repositories: what it has, by name.
        tokens: those that open gated repositories.
        sent: bytes of each file that were sent, by path.
        bytes_left: after how many bytes of files each connection is cut; None for never.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[str] = []
        self.status = 200
        self.repositories: dict[str, Repository] = {}
        self.tokens = {"hf_stand_in"}
        self.sent: Counter[str] = Counter()
        self.bytes_left: int | None = None

    def add(self, repository: Repository) -> Repository:
        """Adds a repository, in place of one of that name."""
        self.repositories[repository.name] = repository
        return repository

    @contextmanager
    def serving(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
        """Serves while the block runs a client without a token, which does not wait before it asks again."""
        from huggingface_hub import constants
        from huggingface_hub.utils import _http

        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(_http.time, "sleep", lambda seconds: None)
        # It reads HF_ENDPOINT when it is imported.
        monkeypatch.setattr(constants, "ENDPOINT", self.address)
        template = f"{self.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"
    # Else each answer would wait 40 ms between its head and its body.
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Sends bytes, or another value as JSON; of a file only as much as before connections are cut."""
        self.server.requests.append(f"{self.command} {self.path}")
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        left = self.server.bytes_left
        if self.file and left is not None:
            self.close_connection = left < len(data)
            data = data[:left]
            self.server.bytes_left = left - len(data)
        if self.file:
            self.server.sent[self.file] += len(data)
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.file = ""
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if self.server.status != 200:
            self.answer(b"", self.server.status)
        elif parts[0] == "api":  # api/datasets/owner/name/revision/commit
            repository = self._found("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main")
            if repository is not None:
                self.answer(repository.info(), headers={"Content-Type": "application/json"})
        else:  # datasets/owner/name/resolve/commit/path
            self._file("/".join(parts[1:3]), parts[4], "/".join(parts[5:]))

    def _found(self, name: str, revision: str) -> Repository | None:
        """Returns a repository at a revision; says that there is none."""
        repository = self.server.repositories.get(name)
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
        if repository.gated and token not in self.server.tokens:
            self._refuse(401, "GatedRepo")
            return
        digest = hashlib.sha256(repository.files[path]).hexdigest()
        headers = {"X-Repo-Commit": repository.revision, "ETag": f'"{digest}"'}
        content = repository.sent_instead.get(path, repository.files[path])
        self.file = path
        wanted = self.headers.get("Range")
        if wanted is None:
            self.answer(content, 200, headers)
            return
        first, last = wanted.removeprefix("bytes=").split("-")
        end = min(int(last) + 1 if last else len(content), len(content))
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
        self.answer(content[int(first) : end], 206, headers)

    def _refuse(self, status: int, code: str) -> None:
        self.answer(b"{}", status, {"X-Error-Code": code, "X-Error-Message": code})
