from __future__ import annotations

import logging
import shutil
from collections import Counter

import numpy as np
import pytest

import fedvlp.data
from fedvlp.data.benchmarks.manifest import is_on_disk, read_manifest
from fedvlp.data.catalog import DATA_SETS
from fedvlp.data.partition import Dirichlet, Shards
from fedvlp.testing import check_data
from fedvlp.utils.errors import UserError
from tests.helpers.benchmark_layouts import OTHER_LAYOUTS
from tests.helpers.benchmark_trees import write_images
from tests.helpers.single_domain_trees import BY_NAME, COOP_PARTS, IMAGES, KEPT, coop, images_of, without_split

CALTECH_101 = DATA_SETS["Caltech101"]
EUROSAT = DATA_SETS["EuroSAT"]
OXFORD_PETS = DATA_SETS["OxfordPets"]
ONE_DOMAIN = sorted({name for name, _, _ in OTHER_LAYOUTS.values() if not BY_NAME[name].is_tree} - {"ImageNet"})


@pytest.fixture(autouse=True)
def published(small_files_are_published):
    pass


@pytest.mark.parametrize("layout", OTHER_LAYOUTS)
def test_every_form_is_read(load, lay_out, layout):
    name, _, title = OTHER_LAYOUTS[layout]
    data = load(name, lay_out(layout))
    known = data.description
    assert set(data.domains) <= set(known.domains)
    assert data.describe()["split_rule"] == (f"official {title}" if title else "stratified")
    assert (f"official {title} split" in data.protocol) == bool(title)
    # Labels are in the order of the publisher's, of which some classes are left.
    order = [known.class_names.index(folder) for folder in data._files[1]]
    assert order == sorted(order)
    assert len(order) == (4 if name == "ImageNet" else len(known.class_names) if name == "Camelyon17" else 3)
    for domain, images in data._images.items():
        assert len(set(images.labels.tolist())) == len(order) or domain in known.domain_classes
        assert images[0].mode == "RGB"
    check_data(lambda: load(name, lay_out(layout), cache_dir=None))


@pytest.mark.parametrize("name", ONE_DOMAIN)
def test_a_data_set_is_the_same_images_in_every_form(load, lay_out, name):
    roots = [lay_out(layout) for layout, (of, _, _) in OTHER_LAYOUTS.items() if of == name]
    described = [load(name, root).describe() for root in roots]
    assert len({each["images"] for each in described}) == 1
    assert described[0]["domains"] == [name]


@pytest.mark.parametrize("name", [name for name in KEPT if KEPT[name].split_file])
def test_coops_split(load, lay_out, name):
    data = load(name, lay_out(f"{name} CoOp"))
    expected = {image.path.rsplit("/")[-1]: image for image in images_of(name)}
    for role, numbers in zip(("train", "validation", "test"), COOP_PARTS.values(), strict=True):
        (part,) = [part for part in data.split_parts if part.role == role]
        images = data._images[name]
        chosen = [expected[images.names[row].rsplit("/")[-1]] for row in part.rows_by_domain[name]]
        assert Counter((image.class_name, image.number) for image in chosen) == Counter(
            (class_name, number) for class_name in KEPT[name].classes for number in numbers
        )
        labels = [data._files[1][images.labels[row]] for row in part.rows_by_domain[name]]
        assert labels == [image.class_name for image in chosen]


def test_coops_few_shots_are_drawn_from_its_training_images(load, lay_out):
    root = lay_out("Food101 CoOp")
    whole = load("Food101", root)
    data = load("Food101", root, shots=2)
    train, validation, test = data.split_parts
    assert [len(part) for part in (train, validation, test)] == [6, 3, 3]
    assert set(train.rows_by_domain["Food101"]) < set(whole.split_parts[0].rows_by_domain["Food101"])
    assert data.protocol.endswith("official CoOp train/val/test split; 2-shot")


@pytest.mark.parametrize(
    "partition", [Dirichlet(3, alpha=5.0), Shards(3, shards_per_client=2)], ids=["Dirichlet", "Shards"]
)
def test_the_training_images_of_one_domain_are_dealt_to_clients(load, lay_out, partition):
    data = load("EuroSAT", lay_out("EuroSAT CoOp"), partition=partition)
    whole = load("EuroSAT", lay_out("EuroSAT CoOp"))
    clients = [part for part in data.split_parts if part.role == "train"]
    assert [client.domain for client in data.clients] == [0, 0, 0]
    rows = np.concatenate([part.rows_by_domain["EuroSAT"] for part in clients])
    assert sorted(rows) == whole.split_parts[0].rows_by_domain["EuroSAT"].tolist()
    assert len([part for part in data.split_parts if part.role == "test"]) == 1
    assert partition.description in data.protocol


def test_coops_split_goes_before_the_publishers_where_both_lie(load, tmp_path):
    root = OTHER_LAYOUTS["Food101 torchvision"][1](tmp_path)
    coop("Food101", "food-101")(root)
    assert load("Food101", root).official.title == "CoOp train/val/test"
    assert load("Food101", root, split="stratified").official is None
    (root / "food-101" / "split_zhou_Food101.json").unlink()
    assert load("Food101", root / "food-101").official.title == "train/test"


def test_of_caltech101_faces_are_counted_once(tmp_path):
    folder = without_split("Caltech101", "caltech101")(tmp_path) / "caltech101" / "101_ObjectCategories"
    write_images(folder, ["BACKGROUND_Google/1.jpg", "Faces_easy/1.jpg", "Faces_easy/2.jpg"])
    found = read_manifest(tmp_path, CALTECH_101)
    assert {image.class_name for image in found.files["Caltech101"]} == set(KEPT["Caltech101"].classes)
    assert found.notes[0].startswith(
        "left out 3 images of folders that are no class: Caltech101/BACKGROUND_Google/1.jpg"
    )
    write_images(folder, ["Faces_hard/1.jpg"])
    with pytest.raises(UserError, match="found Faces_hard as well"):
        read_manifest(tmp_path, CALTECH_101)


def test_without_a_split_a_test_split_is_asked_for(load, lay_out, caplog):
    root = lay_out("EuroSAT torchvision")
    assert load("EuroSAT", root).protocol.startswith("all domains seen, no test split")
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "Set data.test_fraction, or add a split; looked for split_zhou_EuroSAT.json" in record.getMessage()
    caplog.clear()
    data = load("EuroSAT", root, test_fraction=0.4)
    assert [len(part) for part in data.split_parts] == [6, 3, 6]
    assert not caplog.records
    with pytest.raises(UserError, match=r"no official split: looked for split_zhou_EuroSAT.json, 2750/… \(CoOp train"):
        load("EuroSAT", root, split="official").prepare_data()


def test_official_test_images_go_before_a_fraction(load, lay_out, caplog):
    root = lay_out("EuroSAT CoOp")
    data = load("EuroSAT", root, test_fraction=0.4)
    assert data.describe() == load("EuroSAT", root).describe()
    assert (data.split_hash, data.protocol) == (load("EuroSAT", root).split_hash, load("EuroSAT", root).protocol)
    assert caplog.messages == [
        "EuroSAT: its official split has test images, so none are drawn by data.test_fraction. To draw them, set "
        "data.split=stratified."
    ]
    drawn = load("EuroSAT", root, test_fraction=0.4, split="stratified").describe()
    assert (drawn["test_fraction"], drawn["split_rule"]) == (0.4, "stratified")


def test_wrong_roots(load, tmp_path):
    with pytest.raises(UserError, match=r"Expected OxfordPets in the folder .*nowhere; there is no such folder"):
        load("OxfordPets", tmp_path / "nowhere").prepare_data()
    (tmp_path / "some").mkdir()
    with pytest.raises(
        UserError, match=r"as one of: split_zhou_OxfordPets.json, images/… \(CoOp\); .*Found some there"
    ):
        load("OxfordPets", tmp_path).prepare_data()
    assert not is_on_disk(tmp_path, OXFORD_PETS)
    assert not is_on_disk(tmp_path / "nowhere", OXFORD_PETS)


def test_a_class_without_images_is_named(load, tmp_path):
    root = without_split("EuroSAT", "eurosat")(tmp_path)
    with pytest.raises(UserError, match=r"Expected the 10 classes of EuroSAT in .*; no domain has Forest, Herbaceous"):
        load("EuroSAT", root, allow_missing_classes=False).prepare_data()
    (root / "eurosat" / "2750" / "River").mkdir()
    with pytest.raises(UserError, match="Found no valid file for the classes River"):
        load("EuroSAT", root).prepare_data()
    assert is_on_disk(root, EUROSAT)


def test_an_image_in_two_parts_of_the_split(load, tmp_path):
    root = OTHER_LAYOUTS["FGVCAircraft CoOp"][1](tmp_path)
    lists = root / "fgvc_aircraft"
    first = (lists / "images_variant_train.txt").read_text().splitlines()[0]
    with (lists / "images_variant_test.txt").open("a") as file:
        file.write(f"{first}\n")
    with pytest.raises(
        UserError, match=r"once and in one part of the split; 1 are named more than once: images/0000001"
    ):
        load("FGVCAircraft", root).prepare_data()


def test_a_large_folder_beside_it_is_not_searched_for_ever(tmp_path):
    for number in range(30):
        (tmp_path / "other" / str(number)).mkdir(parents=True)
    coop("DTD", "z/dtd")(tmp_path)
    found = read_manifest(tmp_path, BY_NAME["DTD"])
    assert found.folder == tmp_path / "z" / "dtd"
    assert len(found.files["DTD"]) == 3 * IMAGES
    shutil.rmtree(tmp_path / "z")
    with pytest.raises(UserError, match="Expected DTD"):
        read_manifest(tmp_path, BY_NAME["DTD"])


def test_data_sets_have_short_names():
    assert {getattr(fedvlp.data, name).description.name for name in ONE_DOMAIN} == set(ONE_DOMAIN)
