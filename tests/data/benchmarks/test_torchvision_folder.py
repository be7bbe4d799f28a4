from __future__ import annotations

import shutil

import pytest
import torchvision.datasets

from fedvlp.data.benchmarks.manifest import read_manifest
from fedvlp.data.catalog import DATA_SETS, DESCRIPTIONS
from fedvlp.data.catalog.description import TorchvisionFolder
from fedvlp.utils.errors import UserError
from tests.helpers.benchmark_layouts import OTHER_LAYOUTS
from tests.helpers.single_domain_trees import flowers102, food101, images_of, stanford_cars

DTD = DATA_SETS["DTD"]
FLOWERS_102 = DATA_SETS["Flowers102"]
FOOD_101 = DATA_SETS["Food101"]
STANFORD_CARS = DATA_SETS["StanfordCars"]
READ = [part for known in DESCRIPTIONS for form in known.layouts for part in form.parts]
READ = [part for part in READ if isinstance(part, TorchvisionFolder)]


@pytest.mark.parametrize("part", READ, ids=lambda part: part.class_name)
def test_it_is_read_by_a_class_of_torchvision(part):
    assert issubclass(getattr(torchvision.datasets, part.class_name), torchvision.datasets.VisionDataset)


def test_flowers_are_called_as_torchvision_calls_them():
    for ours, theirs in zip(FLOWERS_102.class_names, torchvision.datasets.Flowers102.classes, strict=True):
        assert FLOWERS_102.class_of(theirs) == ours


def test_cars_of_torchvision(tmp_path):
    found = read_manifest(stanford_cars(tmp_path), STANFORD_CARS)
    expected = {image.path.split("/")[-1]: image.class_name for image in images_of("StanfordCars")}
    assert {file.path.rsplit("/", 1)[-1]: file.class_name for file in found.files["StanfordCars"]} == expected
    tests = [file.name for file in found.files["StanfordCars"] if file.role == "test"]
    assert sorted(name.rsplit("/")[-1] for name in tests) == ["00005.jpg", "00010.jpg", "00015.jpg"]


def test_the_folder_must_be_called_as_torchvision_calls_it(tmp_path):
    OTHER_LAYOUTS["DTD torchvision"][1](tmp_path)
    (tmp_path / "dtd" / "dtd").rename(tmp_path / "dtd" / "textures")
    with pytest.raises(UserError, match=r"reads DTD in a folder dtd/dtd only; .*, or put CoOp's split_zhou_Desc"):
        read_manifest(tmp_path, DTD)


def test_roots_at_any_level_and_relative_ones(tmp_path, monkeypatch):
    food101(tmp_path / "below")
    monkeypatch.chdir(tmp_path / "below" / "food-101")
    roots = [tmp_path, tmp_path / "below", tmp_path / "below" / "food-101"]
    assert len({len(read_manifest(root, FOOD_101).files["Food101"]) for root in roots}) == 1
    assert len(read_manifest(type(tmp_path)("."), FOOD_101).files["Food101"]) == 15


def test_what_torchvision_finds_damaged(tmp_path):
    flowers102(tmp_path)  # its digests are not those that were published
    with pytest.raises(
        UserError, match=r"torchvision's Flowers102 can't read .*flowers-102 \(Dataset not found or cor"
    ):
        read_manifest(tmp_path, FLOWERS_102)
    food101(tmp_path / "food")
    (tmp_path / "food/food-101/meta/test.json").write_text('{"apple_pie": [')
    with pytest.raises(UserError, match=r"torchvision's Food101 can't read .*get them again"):
        read_manifest(tmp_path, FOOD_101)
    stanford_cars(tmp_path / "cars")
    (tmp_path / "cars/stanford_cars/devkit/cars_train_annos.mat").write_bytes(b"MATLAB 5.0")
    with pytest.raises(UserError, match="torchvision's StanfordCars can't read"):
        read_manifest(tmp_path, STANFORD_CARS)


def test_missing_images_are_named(tmp_path):
    shutil.rmtree(food101(tmp_path) / "food-101" / "images" / "waffles")
    with pytest.raises(
        UserError, match=r"Food101 in .*food-101 names 5 images that are not there: images/waffles/11.jpg, "
    ):
        read_manifest(tmp_path, FOOD_101)
