"""Made-up images for the tests of data sets: in memory, and as folders of files."""

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
    """Writes a file of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


@pytest.fixture
def save() -> Callable[..., Path]:
    return save_image


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Writes art, photo and sketch, each with four images of cat and of dog."""
    root = tmp_path / "tree"
    for place, domain in enumerate(("art", "photo", "sketch")):
        for label, name in enumerate(("cat", "dog")):
            for i in range(4):
                save_image(root / domain / name / f"{i}.png", seed=100 * place + 10 * label + i)
    return root


@pytest.fixture
def folders(tmp_path: Path) -> Callable[..., DomainFolders]:
    """Makes a data module whose cache is the test's own."""
    from fedvlp.data import DomainFolders

    def make(root: Path, **options: object) -> DomainFolders:
        return DomainFolders(str(root), **({"cache_dir": str(tmp_path / "cache")} | options))

    return make


@pytest.fixture
def data(arrays, transform) -> FederatedDataModule:
    """Two domains that train and one that is held out, bound to the plainest transform."""
    module = arrays(held_out="b", batch_size=4, cache_dir=None)
    module.setup("fit")
    module.bind(transform)
    return module


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the files that are decoded to see whether they can be."""
    from fedvlp.data import domain_folders

    counts = []
    original = domain_folders.decode_all

    def counted(paths, *rest):
        counts.append(len(paths))
        return original(paths, *rest)

    monkeypatch.setattr(domain_folders, "decode_all", counted)
    return counts


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lists the rows of the files that are decoded."""
    from fedvlp.data import FolderImages

    rows = []
    read = FolderImages.__getitem__

    def counted(self, row):
        rows.append(row)
        return read(self, row)

    monkeypatch.setattr(FolderImages, "__getitem__", counted)
    return rows
