"""Made-up images for the tests of data sets: in memory, and as folders of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fedvlp.data import ArrayImages, DomainFolders, FederatedDataModule, FolderImages, Images, domain_folders

CLASSES = ["cat", "dog", "owl"]


def to_tensor(image: Image.Image) -> Tensor:
    """The plainest transform: 8 x 8 pixels in [0, 1]."""
    pixels = np.asarray(image.resize((8, 8)), dtype=np.float32) / 255
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


class Arrays(FederatedDataModule):
    """Three domains of noise in memory."""

    counts: Mapping[str, tuple[int, ...]] = {"a": (10, 7, 5), "b": (4, 4, 4), "c": (6, 1, 2)}

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        domains: dict[str, Images] = {}
        for name, counts in self.counts.items():
            labels = np.repeat(np.arange(3), counts)
            pixels = np.random.default_rng(ord(name[0])).integers(0, 256, (len(labels), 8, 8, 3), dtype=np.uint8)
            domains[name] = ArrayImages(pixels, labels, [f"{name}/{i:03d}" for i in range(len(labels))])
        return domains, CLASSES


@pytest.fixture
def arrays() -> type[Arrays]:
    return Arrays


@pytest.fixture
def transform() -> Callable[[Image.Image], Tensor]:
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
    for domain in ("art", "photo", "sketch"):
        for label, name in enumerate(("cat", "dog")):
            for i in range(4):
                save_image(root / domain / name / f"{i}.png", seed=10 * label + i)
    return root


@pytest.fixture
def folders(tmp_path: Path) -> Callable[..., DomainFolders]:
    """Makes a data module whose cache is the test's own."""

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
    counts = []
    original = domain_folders.unreadable

    def counted(paths, *rest):
        counts.append(len(paths))
        return original(paths, *rest)

    monkeypatch.setattr(domain_folders, "unreadable", counted)
    return counts


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lists the rows of the files that are decoded."""
    rows = []
    read = FolderImages.__getitem__

    def counted(self, row):
        rows.append(row)
        return read(self, row)

    monkeypatch.setattr(FolderImages, "__getitem__", counted)
    return rows
