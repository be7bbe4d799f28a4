"""A stand-in of the hub on the loopback: as much of its interface as pushing and loading one small model needs."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from tests.helpers.hub_address import ask_at

TOKEN = "hf_made_up"


class ModelHub(ThreadingHTTPServer):
    """Holds repositories in memory.

    Attributes:
        files: contents by ``user/name`` and path.
        commits: the newest commit of each repository.
        private: names of the repositories that are private.
        status: what every request is answered with, where it is not 200.
        requests: method and path of each request.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.commits: dict[str, str] = {}
        self.private: set[str] = set()
        self.large: dict[str, bytes] = {}
        self.status = 200
        self.requests: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: ModelHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def do_HEAD(self) -> None:
        self._resolve()

    def do_GET(self) -> None:
        repository = self.path.partition("?")[0].removeprefix("/api/models/")
        if repository in self.server.files:
            return self._answer({"id": repository, "private": repository in self.server.private})
        return self._resolve()

    def do_PUT(self) -> None:
        self.server.large[self.path.removeprefix("/lfs/")] = self._body()
        self._answer({})

    def do_POST(self) -> None:
        body = self._body()
        if self.server.status != 200 or self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self._answer({"error": "no"}, self.server.status if self.server.status != 200 else 401)
        if self.path == "/api/repos/create":
            return self._create(json.loads(body))
        if self.path == "/api/validate-yaml":
            return self._answer({"errors": [], "warnings": []})
        if self.path.endswith("/preupload/main"):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
            files = [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]
            return self._answer({"files": files})
        if self.path.endswith(".git/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            upload = [{"upload": {"href": f"{self.server.address}/lfs/{each['oid']}"}} for each in wanted]
            objects = [{**each, "actions": action} for each, action in zip(wanted, upload, strict=True)]
            return self._answer({"transfer": "basic", "objects": objects})
        return self._commit(body)

    def _create(self, wanted: dict) -> None:
        name = f"{wanted['organization']}/{wanted['name']}"
        known = name in self.server.files
        # huggingface_hub 1.0 sends the former, later versions the latter.
        if not known and (wanted.get("private") or wanted.get("visibility") == "private"):
            self.server.private.add(name)
        self.server.files.setdefault(name, {})
        self._answer({"url": f"{self.server.address}/{name}"}, 409 if known else 200)

    def _commit(self, body: bytes) -> None:
        repository = self.path.removeprefix("/api/models/").removesuffix("/commit/main")
        for line in body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                self.server.files[repository][value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                self.server.files[repository][value["path"]] = self.server.large[value["oid"]]
        commit = hashlib.sha1(body).hexdigest()
        self.server.commits[repository] = commit
        address = f"{self.server.address}/{repository}/commit/{commit}"
        self._answer({"success": True, "commitOid": commit, "commitUrl": address})

    def _resolve(self) -> None:
        repository, _, place = self.path.removeprefix("/").partition("/resolve/")
        revision, _, name = place.partition("/")
        if self.server.status != 200:
            return self._answer({}, self.server.status)
        if repository not in self.server.files:
            return self._answer({}, 404, {"X-Error-Code": "RepoNotFound"})
        commit = self.server.commits.get(repository, "0" * 40)
        if revision not in ("main", commit):
            return self._answer({}, 404, {"X-Error-Code": "RevisionNotFound"})
        content = self.server.files[repository].get(name)
        if content is None:
            return self._answer({}, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        etag = hashlib.sha256(content).hexdigest()
        return self._answer(content, 200, {"ETag": f'"{etag}"', "X-Repo-Commit": commit})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, content: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def model_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[ModelHub]:
    """Yields a hub to which huggingface_hub talks in the block, with a token and an empty cache."""
    hub = ModelHub()
    constants = huggingface_hub.constants
    ask_at(hub.address, monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # a protocol of its own, in Rust
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
