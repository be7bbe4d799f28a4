from __future__ import annotations

import numpy as np
import pytest

from fedvlp.data import StyledShapes
from fedvlp.data.styled_shapes import drawings


@pytest.fixture
def drawn_seeds(monkeypatch):
    """Puts a quick stand-in for the drawings in place, and lists the seeds that were drawn."""
    seeds = []

    def styled_shapes(seed):
        seeds.append(seed)
        generator = np.random.default_rng(seed)
        pixels = (6, 64, 64, 3)
        return {
            name: (generator.integers(0, 256, pixels, dtype=np.uint8), np.arange(6) % 3) for name in drawings.STYLES
        }

    monkeypatch.setattr(drawings, "styled_shapes", styled_shapes)
    return seeds


def test_each_style_is_a_domain(drawn_seeds):
    data = StyledShapes(held_out="sketch", cache_dir=None)
    assert data.class_names[:2] == ["banded balloon", "spotted balloon"]
    assert data.domains == ["cartoon", "painting", "photo", "sketch"]
    assert data.split_table()[-1]["images"][0] == "sketch/banded balloon/00000"
    assert drawn_seeds == [0]


def test_drawings_are_cached_by_seed(drawn_seeds, tmp_path):
    hashes = [
        StyledShapes(drawing_seed=seed, cache_dir=str(tmp_path)).images["photo"].fingerprint([0]) for seed in (0, 0, 1)
    ]
    assert drawn_seeds == [0, 1]
    assert hashes[0] == hashes[1] != hashes[2]
    assert len(list((tmp_path / "styled_shapes").iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut", "text"])
def test_damaged_drawings_are_drawn_again(drawn_seeds, tmp_path, damage):
    first = StyledShapes(cache_dir=str(tmp_path)).images["photo"].fingerprint(range(6))
    path = next((tmp_path / "styled_shapes").iterdir())
    path.write_bytes({"cut": path.read_bytes()[:-100], "text": b"nonsense"}[damage])
    assert StyledShapes(cache_dir=str(tmp_path)).images["photo"].fingerprint(range(6)) == first
    assert drawn_seeds == [0, 0]
