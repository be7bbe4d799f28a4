from __future__ import annotations

import pytest

from fedvlp.data.benchmarks.manifest import read_manifest
from fedvlp.data.catalog import DATA_SETS
from fedvlp.utils.errors import UserError
from tests.helpers.benchmark_layouts import OTHER_LAYOUTS
from tests.helpers.family_trees import image_clef, wilds

FGVC_AIRCRAFT = DATA_SETS["FGVCAircraft"]
SUN_397 = DATA_SETS["SUN397"]
IMAGE_CLEF_DA = DATA_SETS["ImageCLEFDA"]
CAMELYON_17 = DATA_SETS["Camelyon17"]


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("0000001 707-320", "0000001", r"Expected an image of FGVCAircraft in line 1 of .*train.txt; found '0000001'"),
        ("0000002 707-320", "0000002 Concorde", r"in line 2 of .*images_variant_train.txt; found 'Concorde'"),
        ("0000001 707-320", "0000077 707-320", r"train.txt names 1 images that are not there: images/0000077.jpg"),
    ],
    ids=["no class", "class", "missing"],
)
def test_a_list_that_is_wrong(tmp_path, old, new, said):
    folder = OTHER_LAYOUTS["FGVCAircraft CoOp"][1](tmp_path) / "fgvc_aircraft"
    edit(folder / "images_variant_train.txt", old, new)
    with pytest.raises(UserError, match=said):
        read_manifest(tmp_path, FGVC_AIRCRAFT)


def test_empty_lines_do_not_count(tmp_path):
    folder = OTHER_LAYOUTS["SUN397 CoOp without split"][1](tmp_path) / "sun397"
    edit(folder / "Training_01.txt", "\n", "\r\n\n  \n")
    assert len(read_manifest(tmp_path, SUN_397).files["SUN397"]) == 15


def test_what_wilds_says_of_each_patch(tmp_path):
    found = read_manifest(wilds(tmp_path), CAMELYON_17)
    assert {domain: len(files) for domain, files in found.files.items()} == dict.fromkeys(CAMELYON_17.domains, 8)
    for domain, files in found.files.items():
        assert {file.name for file in files if file.role == "validation"} == {
            f"{domain}/{name}/patch_patient_{10 * int(domain[-1]) + tumor:03d}_node_1_x_288_y_32.png"
            for tumor, name in enumerate(("normal", "tumor"))
        }


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (",patient,", ",patients,", r"Expected an image of Camelyon17 in line 1 of .*; found ',patients,node"),
        ("0,000,1,0,32,0,0,0,0", "0,000,1,0,32,0,0,7,0", r"Expected domains of Camelyon17 .*; found '7'"),
        ("0,000,1,0,32,0,0,0,0", "0,000,1,0,32,2,0,0,0", r"Expected an image of Camelyon17 in line 2"),
    ],
    ids=["header", "hospital", "label"],
)
def test_a_table_that_is_wrong(tmp_path, old, new, said):
    edit(wilds(tmp_path) / "camelyon17_v1.0" / "metadata.csv", old, new)
    with pytest.raises(UserError, match=said):
        read_manifest(tmp_path, CAMELYON_17)


def test_classes_of_image_clef_are_those_of_the_numbers(tmp_path):
    found = read_manifest(image_clef("{}_list.txt", "/home/some one/image-clef/")(tmp_path), IMAGE_CLEF_DA)
    assert list(found.files) == ["bing", "caltech", "imagenet", "pascal"]
    for files in found.files.values():
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
    with pytest.raises(UserError, match=r"1 are named more than once: p/011_0.jpg"):
        read_manifest(tmp_path, IMAGE_CLEF_DA)
    edit(tmp_path / "p_list.txt", "011_0.jpg 0", "000_1.jpg 0")
    edit(tmp_path / "b_list.txt", "000_0.jpg 0", "000_0.jpg 12")
    with pytest.raises(UserError, match="found '12'"):
        read_manifest(tmp_path, IMAGE_CLEF_DA)
