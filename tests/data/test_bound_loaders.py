"""Images of other things than the classes: read from any folder, measured, and part of nothing else."""

from __future__ import annotations

import pytest
import torch

from fedvlp.utils.errors import UserError
from tests.helpers.data import batches, prepared


@pytest.fixture
def others(tmp_path, save):
    """A folder of five images at several depths, and what is none."""
    folder = tmp_path / "others"
    for index, name in enumerate(("1.png", "a/2.png", "a/3.jpg", "a/b/c/4.png", "z/5.png")):
        save(folder / name, seed=index)
    (folder / "a" / "notes.txt").touch()
    return folder


def bound(arrays, transform, others, **options):
    data = arrays(held_out="b", cache_dir=None, eval_batch_size=2, out_of_distribution=str(others))
    data.prepare_data()
    data.setup("fit")
    data.bind(transform, **options)
    data.encode()
    return data


def test_all_images_below_the_folder_are_one_split_of_no_class(arrays, transform, others):
    (split,) = bound(arrays, transform, others).out_of_distribution_splits()
    assert (split.name, split.domain) == ("out_of_distribution/others", "others")
    assert (split.num_examples, split.clients) == (5, ())
    found = batches(split.loader)
    assert [len(labels) for _, labels in found] == [2, 2, 1]
    assert {label for _, labels in found for label in labels.tolist()} == {-1}
    (of_constants,) = bound(arrays, transform, others, prepare=prepared, key="k").out_of_distribution_splits()
    expected = prepared(torch.cat([inputs for inputs, _ in found]))
    for name, values in expected.items():
        assert torch.equal(torch.cat([inputs[name] for inputs, _ in of_constants.loader]), values)


def test_nothing_else_depends_on_them(arrays, transform, others, data):
    beside = bound(arrays, transform, others)
    assert [split.name for split in beside.evaluation_splits()] == [split.name for split in data.evaluation_splits()]
    assert (beside.split_hash, beside.protocol) == (data.split_hash, data.protocol)
    assert data.out_of_distribution_splits() == []
    described = beside.describe()
    digest = described["out_of_distribution"]["images"][-8:]
    assert described.pop("out_of_distribution") == {"name": "others", "images": f"5 images, {digest}"}
    assert described == data.describe()


def test_other_images_are_described_otherwise(arrays, transform, others, save):
    before = bound(arrays, transform, others).describe()["out_of_distribution"]
    save(others / "z" / "6.png", seed=9)
    assert bound(arrays, transform, others).describe()["out_of_distribution"] != before


def test_mistakes_are_named(arrays, tmp_path, others):
    with pytest.raises(UserError, match=r"there is none. Check data\.out_of_distribution"):
        arrays(out_of_distribution=str(tmp_path / "nowhere")).prepare_data()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="found none"):
        arrays(out_of_distribution=str(tmp_path / "empty")).prepare_data()
    (others / "a" / "bad.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"1 of 6 images can't be read:\n  a/bad\.png"):
        arrays(out_of_distribution=str(others)).prepare_data()
