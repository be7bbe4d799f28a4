"""Layouts other than folders domain/class/image: the content of each kind of file, and errors for damaged files."""

import json
import pickle
import shutil
from collections import Counter

import numpy as np
import pytest
import torchvision.datasets

from fedvlp.catalog.description import DATA_SETS
from fedvlp.data.benchmarks.manifest import read_manifest
from fedvlp.utils.errors import UserError
from tests.helpers.benchmark_layouts import LAYOUTS
from tests.helpers.benchmark_trees import write_images
from tests.helpers.family_trees import cifar, image_clef, wilds
from tests.helpers.single_domain_trees import (
    BY_NAME,
    COOP_PARTS,
    FILE_LAYOUTS,
    coop,
    flowers102,
    food101,
    list_images,
    without_split,
)

CALTECH_101 = DATA_SETS["Caltech101"]
CAMELYON_17 = DATA_SETS["Camelyon17"]
DTD = DATA_SETS["DTD"]
FGVC_AIRCRAFT = DATA_SETS["FGVCAircraft"]
FLOWERS_102 = DATA_SETS["Flowers102"]
FOOD_101 = DATA_SETS["Food101"]
IMAGE_CLEF_DA = DATA_SETS["ImageCLEFDA"]
SUN_397 = DATA_SETS["SUN397"]
VLCS = DATA_SETS["VLCS"]


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in FILE_LAYOUTS if FILE_LAYOUTS[name].split_file])
def test_coops_split(lay_out, name):
    class_and_number = {image.path.rsplit("/")[-1]: (image.class_name, image.number) for image in list_images(name)}
    files = read_manifest(lay_out(f"{name} CoOp"), BY_NAME[name]).files[name]
    for role, numbers in zip(("train", "validation", "test"), COOP_PARTS.values(), strict=True):
        of_role = [file for file in files if file.role == role]
        chosen = [class_and_number[file.name.rsplit("/")[-1]] for file in of_role]
        assert Counter(chosen) == Counter((each, number) for each in FILE_LAYOUTS[name].classes for number in numbers)
        assert [file.class_name for file in of_role] == [class_name for class_name, _ in chosen]


@pytest.fixture
def food(tmp_path):
    """The split of a small Food-101."""
    return coop("Food101", "food-101")(tmp_path) / "food-101" / "split_zhou_Food101.json"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (["apple_pie/99.jpg", 0, "apple_pie"], r"lists 1 images that do not exist: images/apple_pie/99.jpg"),
        (["apple_pie/1.jpg", 0, "pizzas"], r"Expected a class of Food101 \(apple_pie, .* found 'pizzas'"),
        (["apple_pie/4.jpg", 0, "apple_pie"], r"1 are listed more than once: images/apple_pie/4.jpg"),
        (17, r"labels of CoOp in .*TypeError.* Download the file again from CoOp's DATASETS.md, or remove it"),
    ],
    ids=["missing", "class", "leak", "number"],
)
def test_a_split_of_coop_that_is_wrong(tmp_path, food, entry, message):
    content = json.loads(food.read_text())
    content["train"][0] = entry
    food.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message) as error:
        read_manifest(tmp_path, FOOD_101)
    assert str(food.parent) in str(error.value)


def test_paths_may_be_of_windows_and_labels_do_not_count(tmp_path, food):
    content = json.loads(food.read_text())
    for part, entries in content.items():
        content[part] = [[image.replace("/", "\\"), 7, name.upper()] for image, _, name in entries]
    food.write_text(json.dumps(content))
    manifest = read_manifest(tmp_path, FOOD_101)
    assert manifest.split == "CoOp train/val/test"
    food101(tmp_path / "both")
    coop("Food101", "food-101")(tmp_path / "both")
    assert read_manifest(tmp_path / "both", FOOD_101).split == "CoOp train/val/test", "it goes before the publisher's"
    assert {image.class_name for image in manifest.files["Food101"]} == {"apple_pie", "baby_back_ribs", "waffles"}


def test_of_caltech101_faces_are_counted_once(tmp_path):
    folder = without_split("Caltech101", "caltech101")(tmp_path) / "caltech101" / "101_ObjectCategories"
    write_images(folder, ["BACKGROUND_Google/1.jpg", "Faces_easy/1.jpg", "Faces_easy/2.jpg"])
    manifest = read_manifest(tmp_path, CALTECH_101)
    assert {image.class_name for image in manifest.files["Caltech101"]} == set(FILE_LAYOUTS["Caltech101"].classes)
    assert manifest.notes[0].startswith(
        "skipped 3 images in folders that are not classes: Caltech101/BACKGROUND_Google/1.jpg"
    )
    write_images(folder, ["Faces_hard/1.jpg"])
    with pytest.raises(UserError, match="found Faces_hard as well"):
        read_manifest(tmp_path, CALTECH_101)


def test_images_of_equal_names_are_named_after_the_folder_that_differs(tmp_path):
    parts = ("train", "crossval", "test")
    write_images(tmp_path, [f"{domain}/{part}/0/1.png" for domain in VLCS.domains for part in parts])
    write_images(tmp_path, [f"{domain}/train/1/1.png" for domain in VLCS.domains])
    names = [file.name for file in read_manifest(tmp_path, VLCS).files["SUN09"]]
    assert names == [*(f"SUN09/bird/{part}/1.png" for part in sorted(parts)), "SUN09/car/1.png"]


def test_roots_at_any_level_and_relative_ones(tmp_path, monkeypatch):
    food101(tmp_path / "below")
    monkeypatch.chdir(tmp_path / "below" / "food-101")
    for root in (tmp_path, tmp_path / "below", tmp_path / "below" / "food-101", type(tmp_path)(".")):
        assert len(read_manifest(root, FOOD_101).files["Food101"]) == 15


def test_damaged_or_missing_files_of_torchvision(tmp_path):
    flowers102(tmp_path)  # its digests differ from the published ones
    with pytest.raises(
        UserError, match=r"torchvision's Flowers102 can't read .*flowers-102 \(Dataset not found or cor"
    ):
        read_manifest(tmp_path, FLOWERS_102)
    shutil.rmtree(food101(tmp_path / "food") / "food-101" / "images" / "waffles")
    with pytest.raises(UserError, match=r"food-101 lists 5 images that do not exist: images/waffles/11.jpg, "):
        read_manifest(tmp_path / "food", FOOD_101)
    LAYOUTS["DTD torchvision"][1](tmp_path / "textures")
    (tmp_path / "textures" / "dtd" / "dtd").rename(tmp_path / "textures" / "dtd" / "other")
    with pytest.raises(UserError, match=r"torchvision's DTD can't read .*dtd/dtd"):
        read_manifest(tmp_path / "textures", DTD)
    (tmp_path / "food/food-101/meta/test.json").write_text('{"apple_pie": [')
    with pytest.raises(UserError, match=r"torchvision's Food101 can't read .*download them again"):
        read_manifest(tmp_path, FOOD_101)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0000001 707-320", "0000001", r"Expected an image of FGVCAircraft in line 1 of .*train.txt; found '0000001'"),
        ("0000002 707-320", "0000002 Concorde", r"in line 2 of .*images_variant_train.txt; found 'Concorde'"),
        ("0000001 707-320", "0000077 707-320", r"train.txt lists 1 images that do not exist: images/0000077.jpg"),
        (
            "0000001 707-320",
            "0000004 707-320",
            r"once and in one part of the split; 1 are listed more than once: images/",
        ),
    ],
    ids=["no class", "class", "missing", "leak"],
)
def test_a_list_that_is_wrong(tmp_path, old, new, message):
    folder = LAYOUTS["FGVCAircraft CoOp"][1](tmp_path) / "fgvc_aircraft"
    edit(folder / "images_variant_train.txt", old, new)
    with pytest.raises(UserError, match=message):
        read_manifest(tmp_path, FGVC_AIRCRAFT)


def test_roles_of_wilds_patches(tmp_path):
    files_of = read_manifest(wilds(tmp_path), CAMELYON_17).files
    assert {domain: len(files) for domain, files in files_of.items()} == dict.fromkeys(CAMELYON_17.domains, 8)
    for domain, files in files_of.items():
        assert {file.name for file in files if file.role == "validation"} == {
            f"{domain}/{name}/patch_patient_{10 * int(domain[-1]) + tumor:03d}_node_1_x_288_y_32.png"
            for tumor, name in enumerate(("normal", "tumor"))
        }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",patient,", ",patients,", r"Expected an image of Camelyon17 in line 1 of .*; found ',patients,node"),
        ("0,000,1,0,32,0,0,0,0", "0,000,1,0,32,0,0,7,0", r"Expected a domain of Camelyon17 .*; found '7'"),
        ("0,000,1,0,32,0,0,0,0", "0,000,1,0,32,2,0,0,0", r"Expected an image of Camelyon17 in line 2"),
    ],
    ids=["header", "hospital", "label"],
)
def test_a_table_that_is_wrong(tmp_path, old, new, message):
    edit(wilds(tmp_path) / "camelyon17_v1.0" / "metadata.csv", old, new)
    with pytest.raises(UserError, match=message):
        read_manifest(tmp_path, CAMELYON_17)


def test_classes_of_image_clef_are_those_of_the_numbers(tmp_path):
    manifest = read_manifest(image_clef("{}_list.txt", "/home/some one/image-clef/")(tmp_path), IMAGE_CLEF_DA)
    assert list(manifest.files) == ["bing", "caltech", "imagenet", "pascal"]
    for files in manifest.files.values():
        assert {(file.name.split("/")[-1][:3], file.class_name) for file in files} == {
            ("000", "aeroplane"),
            ("004", "bottle"),
            ("011", "people"),
        }
    edit(tmp_path / "p_list.txt", "000_0.jpg 0", "011_0.jpg 0")  # as published, some images have two classes
    names = [file.name for file in read_manifest(tmp_path, IMAGE_CLEF_DA).files["pascal"]]
    assert {"pascal/aeroplane/011_0.jpg", "pascal/people/011_0.jpg"} < set(names)
    assert len(names) == 15
    edit(tmp_path / "p_list.txt", "000_1.jpg 0", "011_0.jpg 0")
    with pytest.raises(UserError, match=r"1 are listed more than once: p/011_0.jpg"):
        read_manifest(tmp_path, IMAGE_CLEF_DA)


@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100"])
def test_pixels_and_labels_match_torchvision(tmp_path, small_files_are_published, name):
    images = {image.path: image for image in read_manifest(cifar(name)(tmp_path), BY_NAME[name]).files[name]}
    theirs = getattr(torchvision.datasets, name)
    for is_train in (True, False):
        expected = theirs(str(tmp_path), train=is_train)
        files = [file for file, _ in (theirs.train_list if is_train else theirs.test_list)]
        chosen = [images[f"{file}_{row:05d}"] for file in files for row in range(15)]
        assert {image.role for image in chosen} == {"train" if is_train else "test"}
        np.testing.assert_array_equal([image.pixels for image in chosen], expected.data)
        assert [image.class_name for image in chosen] == [expected.classes[label] for label in expected.targets]


def test_only_published_pickles_are_read(tmp_path):
    class Hostile:
        def __reduce__(self):
            return pytest.fail, ("something of the pickle was run",)

    path = cifar("CIFAR10")(tmp_path) / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Hostile()}))
    with pytest.raises(
        UserError, match=r"torchvision's CIFAR10 can't read .*cifar-10-batches-py .* download them again"
    ):
        read_manifest(tmp_path, BY_NAME["CIFAR10"])
