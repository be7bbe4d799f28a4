"""A fake client of the Hugging Face hub with the real signatures and repositories in memory."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import huggingface_hub
import pytest

REVISION = "5" * 40


@dataclass
class Repository:
    """A repository: file contents by path, its only commit, and the fields of its card."""

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    revision: str = REVISION
    card: Mapping[str, Any] = field(default_factory=dict)


class Hub:
    """A hub of data sets that replaces the real one while the patch is active.

    Attributes:
        repositories: Repositories by name.
        requests: Repositories and files that clients requested.
        sent: Bytes sent for each file.
        error: Error to raise for every request.
        lost: A file that cannot be downloaded.
    """

    endpoint = "https://hub"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.sent: Counter[str] = Counter()
        self.error: Exception | None = None
        self.lost = ""
        client = create_autospec(huggingface_hub.HfApi, instance=True)
        client.endpoint = self.endpoint
        client.dataset_info.side_effect = self._info
        client.hf_hub_download.side_effect = self._download
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: client)

    def add(self, repository: Repository) -> Repository:
        """Add a repository, replacing any with the same name."""
        self.repositories[repository.name] = repository
        return repository

    def _info(self, name: str, revision: str | None, files_metadata: bool) -> SimpleNamespace:
        self.requests.append(name)
        if self.error is not None:
            raise self.error
        if name not in self.repositories:
            raise FileNotFoundError("Repository Not Found")
        found = self.repositories[name]
        assert revision in (None, found.revision)
        files = [SimpleNamespace(rfilename=path, size=len(content)) for path, content in found.files.items()]
        return SimpleNamespace(sha=found.revision, siblings=files, card_data=found.card)

    def _download(self, name: str, file: str, repo_type: str, revision: str, local_dir: Path) -> str:
        """Write a file into a folder unless it exists, like the real client."""
        self.requests.append(file)
        if file == self.lost:
            raise OSError("the connection was cut")
        path = Path(local_dir) / file
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.repositories[name].files[file])
            self.sent[file] += path.stat().st_size
        return str(path)
