"""Trees of the published data sets, each written once."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import fedvlp
from tests.helpers.benchmark_layouts import LAYOUTS


@pytest.fixture(scope="session")
def lay_out(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write the tree of a layout once, by the layout's name."""
    written: dict[str, Path] = {}

    def write(layout: str) -> Path:
        if layout not in written:
            written[layout] = LAYOUTS[layout][1](tmp_path_factory.mktemp("layout"))
        return written[layout]

    return write


@pytest.fixture
def load(tmp_path):
    """Make a data module of a few classes with a separate cache."""

    def make(name, root, **options):
        options = {"allow_missing_classes": True, "cache_dir": str(tmp_path / "cache")} | options
        return getattr(fedvlp, name)(root=str(root), **options)

    return make


@pytest.fixture
def small_files_are_published(monkeypatch):
    """Make the digests of the small trees' files count as published."""
    for reader in ("cifar", "flowers102"):
        monkeypatch.setattr(f"torchvision.datasets.{reader}.check_integrity", lambda path, _: os.path.isfile(path))
