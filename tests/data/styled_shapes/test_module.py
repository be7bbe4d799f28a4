from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from fedvlp.data import StyledShapes


@pytest.fixture
def drawn(monkeypatch):
    """Puts a quick stand-in for the drawings in place, and lists the seeds that were drawn."""
    seeds = []

    def styled_shapes(seed):
        seeds.append(seed)
        generator = np.random.default_rng(seed)
        domains = {
            name: (generator.integers(0, 256, (6, 64, 64, 3), dtype=np.uint8), np.arange(6, dtype=np.int64) % 3)
            for name in ("sketch", "photo")
        }
        return SimpleNamespace(class_names=["red ball", "bell", "cup"], domains=domains)

    stand_in = ModuleType("fedvlp.data.styled_shapes.drawings")
    stand_in.styled_shapes = styled_shapes
    stand_in.STYLED_SHAPES_VERSION = 1
    monkeypatch.setitem(sys.modules, "fedvlp.data.styled_shapes.drawings", stand_in)
    return seeds


def test_each_style_is_a_domain(drawn):
    data = StyledShapes(held_out="sketch", cache_dir=None)
    assert data.class_names == ["red ball", "bell", "cup"]
    assert data.domains == ["photo", "sketch"]
    assert data.split_table()[-1]["images"][0] == "sketch/red ball/00000"
    assert drawn == [0]


def test_drawings_are_cached_by_seed(drawn, tmp_path):
    hashes = [
        StyledShapes(drawing_seed=seed, cache_dir=str(tmp_path))._images["photo"].fingerprint([0]) for seed in (0, 0, 1)
    ]
    assert drawn == [0, 1]
    assert hashes[0] == hashes[1] != hashes[2]
    assert len(list((tmp_path / "styled_shapes").iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "text"])
def test_damaged_drawings_are_drawn_again(drawn, tmp_path, damage):
    first = StyledShapes(cache_dir=str(tmp_path))._images["photo"].fingerprint(range(6))
    path = next((tmp_path / "styled_shapes").iterdir())
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes({"cut": content[:-100], "flipped": content, "text": b"nonsense"}[damage])
    assert StyledShapes(cache_dir=str(tmp_path))._images["photo"].fingerprint(range(6)) == first
    assert drawn == [0, 0]
