"""A stand-in of the Hugging Face hub on the loopback: it answers what the client asks of repositories and files.

It keeps files in memory, each as the hub keeps large ones: with its SHA-256, behind a redirect. It counts what it sends
and can cut a connection, send something else than it announced, or ask for a token.
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
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.helpers.hub_address import ask_at

REVISION = "5" * 40


@dataclass
class Repository:
    """One repository.

    Attributes:
        name: ``owner/name``.
        kind: "models" or "datasets".
        files: contents by path.
        revision: its only commit.
        card: what its card says in machine-readable form.
        gated: whether files are sent only to those with a token.
        sent_instead: contents by path that are sent in place of those that are announced.
    """

    name: str
    kind: str = "datasets"
    files: dict[str, bytes] = field(default_factory=dict)
    revision: str = REVISION
    card: Mapping[str, Any] = field(default_factory=dict)
    gated: bool = False
    sent_instead: dict[str, bytes] = field(default_factory=dict)

    def info(self) -> dict[str, Any]:
        """What the hub says of the repository."""
        siblings = [{"rfilename": path, **self._blob(path)} for path in sorted(self.files)]
        about = {"id": self.name, "sha": self.revision, "private": False, "disabled": False, "downloads": 0, "likes": 0}
        gated = "manual" if self.gated else False
        return {**about, "gated": gated, "tags": [], "cardData": dict(self.card), "siblings": siblings}

    def entry(self, path: str) -> dict[str, Any]:
        """What the hub says of a file in a listing."""
        blob = self._blob(path)
        return {"type": "file", "path": path, "oid": blob["blobId"], "size": blob["size"], "lfs": _listed(blob["lfs"])}

    def tree(self, folder: str) -> list[dict[str, Any]]:
        """The files directly in a folder, and the folders in it."""
        prefix = f"{folder}/" if folder else ""
        below = [path.removeprefix(prefix) for path in sorted(self.files) if path.startswith(prefix)]
        folders = sorted({path.split("/")[0] for path in below if "/" in path})
        entries = [{"type": "directory", "path": prefix + name, "oid": "0" * 40, "size": 0} for name in folders]
        return [*entries, *(self.entry(prefix + path) for path in below if "/" not in path)]

    def _blob(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return {"size": len(content), "blobId": hashlib.sha1(content).hexdigest(), "lfs": lfs}


def _listed(lfs: Mapping[str, Any]) -> dict[str, Any]:
    return {"oid": lfs["sha256"], "size": lfs["size"], "pointerSize": lfs["pointerSize"]}


class Hub:
    """The stand-in.

    Attributes:
        repositories: what it has, by kind and name.
        tokens: those that open gated repositories.
        requests: what was asked, such as ``GET /api/datasets/a/b``.
        sent: bytes of each file that were sent, by path.
        bytes_left: after how many bytes of files each connection is cut; None for never.
        status: answers every question with this status, if it is not 0.
        sends_parts: whether it sends parts of files, and not always the whole.
    """

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.tokens = {"hf_stand_in"}
        self.requests: list[str] = []
        self.sent: Counter[str] = Counter()
        self.bytes_left: int | None = None
        self.status = 0
        self.sends_parts = True
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def add(self, repository: Repository) -> Repository:
        """Adds a repository, in place of one of that name."""
        self.repositories[repository.kind, repository.name] = repository
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

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing."""

    def _answer(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if self.hub.status:
            self._send(self.hub.status, b"", {})
        elif parts[0] == "api":
            self._api(parts[1], "/".join(parts[2:4]), parts[4:])
        elif parts[0] == "cdn":
            self._content(parts[1], "/".join(parts[2:4]), "/".join(parts[4:]))
        else:
            kind = parts.pop(0) if parts[0] == "datasets" else "models"
            self._resolve(kind, "/".join(parts[:2]), parts[2:])

    def _found(self, kind: str, name: str, revision: str) -> Repository | None:
        """Returns a repository at a revision; says that there is none."""
        repository = self.hub.repositories.get((kind, name))
        if repository is None:
            self._refuse(401, "RepoNotFound")
        elif revision not in ("main", repository.revision):
            self._refuse(404, "RevisionNotFound")
            return None
        return repository

    def _api(self, kind: str, name: str, rest: list[str]) -> None:
        question, revision, *path = rest or ["revision", "main"]
        repository = self._found(kind, name, revision)
        if repository is None:
            return
        if question == "revision":
            self._json(repository.info())
        elif question == "tree":
            self._json(repository.tree("/".join(path)))
        elif question == "paths-info":
            wanted = self._paths()
            self._json([repository.entry(path) for path in wanted if path in repository.files])
        else:
            self._refuse(404, "EntryNotFound")

    def _paths(self) -> list[str]:
        """The paths that are asked for, as a form or as JSON."""
        text = self.body.decode()
        return parse_qs(text).get("paths", []) if not text.startswith("{") else json.loads(text)["paths"]

    def _resolve(self, kind: str, name: str, rest: list[str]) -> None:
        """Sends on to where a file's content is."""
        repository = self._found(kind, name, rest[1])
        path = "/".join(rest[2:])
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if repository is None:
            return
        if repository.gated and token not in self.hub.tokens:
            self._refuse(401, "GatedRepo")
        elif path not in repository.files:
            self._refuse(404, "EntryNotFound")
        else:
            blob = repository.entry(path)
            self._send(302, b"", {
                "Location": f"{self.hub.address}/cdn/{kind}/{name}/{path}",
                "X-Repo-Commit": repository.revision,
                "X-Linked-Etag": f'"{blob["lfs"]["oid"]}"',
                "X-Linked-Size": str(blob["size"]),
            })  # fmt: skip

    def _content(self, kind: str, name: str, path: str) -> None:
        """Sends a file, or the part of it that is asked for."""
        repository = self.hub.repositories[kind, name]
        content = repository.sent_instead.get(path, repository.files[path])
        wanted = self.headers.get("Range")
        if wanted is None or not self.hub.sends_parts:
            self._send(200, content, {}, path)
            return
        first, last = wanted.removeprefix("bytes=").split("-")
        end = min(int(last) + 1 if last else len(content), len(content))
        part = content[int(first) : end]
        self._send(206, part, {"Content-Range": f"bytes {first}-{end - 1}/{len(content)}"}, path)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

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
