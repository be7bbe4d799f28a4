"""A working folder for the README's commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.documents import ROOT
from tests.helpers.images import draw


@pytest.fixture
def desk(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder such as the README's reader has: the configs, and images of three domains."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for domain, domain_name in enumerate(("drawing", "painting", "photo")):
        for label, class_name in enumerate(("cat", "dog")):
            folder = tmp_path / "my_images" / domain_name / class_name
            folder.mkdir(parents=True)
            for index in range(5):
                draw(domain, label, index).save(folder / f"{index}.png")
    return tmp_path
