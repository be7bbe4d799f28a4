from __future__ import annotations

import json

import pytest

from fedvlp.data.benchmarks.manifest import read_manifest
from fedvlp.data.catalog import DATA_SETS
from fedvlp.utils.errors import UserError
from tests.helpers.single_domain_trees import coop

FOOD_101 = DATA_SETS["Food101"]


@pytest.fixture
def food(tmp_path):
    """The split of a small Food-101."""
    return coop("Food101", "food-101")(tmp_path) / "food-101" / "split_zhou_Food101.json"


def change(path, part, row, entry):
    content = json.loads(path.read_text())
    content[part][row] = entry
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (["apple_pie/99.jpg", 0, "apple_pie"], r"names 1 images that are not there: apple_pie/99.jpg"),
        (["apple_pie/1.jpg", 0, "pizzas"], r"Expected classes of Food101 \(apple_pie, .* found 'pizzas'"),
        (["apple_pie/4.jpg", 0, "apple_pie"], r"1 are named more than once: images/apple_pie/4.jpg"),
        (["apple_pie/1.jpg", 0], r"lists train, val and test .*ValueError: not enough values"),
        (17, r"lists train, val and test .*TypeError"),
    ],
    ids=["missing", "class", "leak", "short", "number"],
)
def test_a_split_that_is_wrong(tmp_path, food, entry, said):
    change(food, "train", 0, entry)
    with pytest.raises(UserError, match=said) as error:
        read_manifest(tmp_path, FOOD_101)
    assert str(food.parent) in str(error.value)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"train": [], "val": []}', "[" * 50], ids=range(5))
def test_a_damaged_file(tmp_path, food, content):
    food.write_text(content)
    with pytest.raises(UserError, match=r"Get it again from CoOp's DATASETS.md, or take it away"):
        read_manifest(tmp_path, FOOD_101)


def test_paths_may_be_of_windows_and_labels_may_begin_anywhere(tmp_path, food):
    content = json.loads(food.read_text())
    for part, entries in content.items():
        content[part] = [[image.replace("/", "\\"), label + 5, name.upper()] for image, label, name in entries]
    food.write_text(json.dumps(content))
    found = read_manifest(tmp_path, FOOD_101)
    assert found.split == "CoOp train/val/test"
    assert {image.class_name for image in found.files["Food101"]} == {"apple_pie", "baby_back_ribs", "waffles"}
