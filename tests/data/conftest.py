"""Synthetic images for the tests of data sets, in memory and in folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

if TYPE_CHECKING:
    from torch import Tensor

    from fedvlp.data import DomainFolders, FederatedDataModule
    from tests.helpers.arrays import Arrays


@pytest.fixture
def arrays() -> type[Arrays]:
    from tests.helpers.arrays import Arrays

    return Arrays


@pytest.fixture
def transform() -> Callable[[Image.Image], Tensor]:
    from tests.helpers.arrays import to_tensor

    return to_tensor


def save_image(path: Path, seed: int = 0, size: int = 8, mode: str = "RGB") -> Path:
    """Write a file of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


@pytest.fixture
def save() -> Callable[..., Path]:
    return save_image


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Write art, photo and sketch, each with four images of cat and of dog."""
    root = tmp_path / "tree"
    for place, domain in enumerate(("art", "photo", "sketch")):
        for label, name in enumerate(("cat", "dog")):
            for i in range(4):
                save_image(root / domain / name / f"{i}.png", seed=100 * place + 10 * label + i)
    return root


@pytest.fixture
def folders(tmp_path: Path) -> Callable[..., DomainFolders]:
    """Make a data module with a separate cache for each test."""
    from fedvlp.data import DomainFolders

    def make(root: Path, **options: object) -> DomainFolders:
        return DomainFolders(str(root), **({"cache_dir": str(tmp_path / "cache")} | options))

    return make


@pytest.fixture
def data(arrays, transform) -> FederatedDataModule:
    """Two source domains and a held-out domain, bound to the simplest transform."""
    module = arrays(held_out="b", batch_size=4, cache_dir=None)
    module.setup("fit")
    module.bind(transform)
    return module


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the files that are decoded for verification."""
    from fedvlp.data import listed

    counts = []
    original = listed.decode_all

    def counted(paths, *rest):
        counts.append(len(paths))
        return original(paths, *rest)

    monkeypatch.setattr(listed, "decode_all", counted)
    return counts


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List the rows of the decoded files."""
    from fedvlp.data import FolderImages

    rows = []
    read = FolderImages.__getitem__

    def counted(self, row):
        rows.append(row)
        return read(self, row)

    monkeypatch.setattr(FolderImages, "__getitem__", counted)
    return rows
