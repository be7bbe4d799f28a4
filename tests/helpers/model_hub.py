"""A stand-in of the hub on the loopback: as much of its interface as pushing and loading one small model needs."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub.constants
import pytest

from tests.helpers.hub import HubHandler, HubServer

TOKEN = "hf_made_up"


class ModelHub(HubServer):
    """Holds repositories in memory.

    Attributes:
        files: contents by ``user/name`` and path.
        commits: the newest commit of each repository.
        private: names of the repositories that are private.
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.commits: dict[str, str] = {}
        self.private: set[str] = set()
        self.large: dict[str, bytes] = {}


class _Handler(HubHandler):
    server: ModelHub

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def do_GET(self) -> None:
        repository = self.path.partition("?")[0].removeprefix("/api/models/")
        if repository in self.server.files:
            return self.answer({"id": repository, "private": repository in self.server.private})
        return self._resolve()

    def do_PUT(self) -> None:
        self.server.large[self.path.removeprefix("/lfs/")] = self._body()
        self.answer({})

    def do_POST(self) -> None:
        body = self._body()
        if self.server.status != 200 or self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.answer({"error": "no"}, self.server.status if self.server.status != 200 else 401)
        if self.path == "/api/repos/create":
            return self._create(json.loads(body))
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if self.path.endswith("/preupload/main"):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
            files = [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]
            return self.answer({"files": files})
        if self.path.endswith(".git/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            upload = [{"upload": {"href": f"{self.server.address}/lfs/{each['oid']}"}} for each in wanted]
            objects = [{**each, "actions": action} for each, action in zip(wanted, upload, strict=True)]
            return self.answer({"transfer": "basic", "objects": objects})
        return self._commit(body)

    def _create(self, wanted: dict) -> None:
        name = f"{wanted['organization']}/{wanted['name']}"
        known = name in self.server.files
        # huggingface_hub 1.0 sends the former, later versions the latter.
        if not known and (wanted.get("private") or wanted.get("visibility") == "private"):
            self.server.private.add(name)
        self.server.files.setdefault(name, {})
        self.answer({"url": f"{self.server.address}/{name}"}, 409 if known else 200)

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
        self.answer({"success": True, "commitOid": commit, "commitUrl": address})

    def _resolve(self) -> None:
        repository, _, place = self.path.removeprefix("/").partition("/resolve/")
        revision, _, name = place.partition("/")
        if self.server.status != 200:
            return self.answer({}, self.server.status)
        if repository not in self.server.files:
            return self.answer({}, 404, {"X-Error-Code": "RepoNotFound"})
        commit = self.server.commits.get(repository, "0" * 40)
        if revision not in ("main", commit):
            return self.answer({}, 404, {"X-Error-Code": "RevisionNotFound"})
        content = self.server.files[repository].get(name)
        if content is None:
            return self.answer({}, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        etag = hashlib.sha256(content).hexdigest()
        return self.answer(content, 200, {"ETag": f'"{etag}"', "X-Repo-Commit": commit})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body


@contextmanager
def model_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[ModelHub]:
    """Yields a hub to which huggingface_hub talks in the block, with a token and an empty cache."""
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # a protocol of its own, in Rust
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with ModelHub().serving(monkeypatch) as hub:
        yield hub
