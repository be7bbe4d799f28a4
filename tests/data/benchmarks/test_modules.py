"""The data modules: labels, splits and clients of each data set, and the variants of ImageNet."""

import json
import logging
import re
import shutil
from itertools import chain
from pathlib import Path

import pytest

from fedvlp.catalog.description import DESCRIPTIONS
from fedvlp.commands.cli import main
from fedvlp.testing import check_data
from fedvlp.utils.config_files import find_config, read_yaml
from fedvlp.utils.errors import UserError
from tests.helpers.benchmark_layouts import LAYOUTS
from tests.helpers.benchmark_trees import kfold, list_paths, plain_tree, write_images
from tests.helpers.family_trees import FAMILY
from tests.helpers.single_domain_trees import without_split

NAMED_DIFFERENTLY = {"Camelyon17", "ImageCLEFDA", "ImageNet"}
"""Data sets whose images have different names in some layouts."""


@pytest.mark.parametrize("name", sorted({name for name, _, _ in LAYOUTS.values()}))
def test_every_layout_loads_the_same_images(load, lay_out, small_files_are_published, name):
    is_partial = name == "ImageNet"
    digests = set()
    for layout in (layout for layout in LAYOUTS if LAYOUTS[layout][0] == name):
        title = LAYOUTS[layout][2]
        data = load(name, lay_out(layout))
        known = data.description
        assert set(data.domains) <= set(known.domains) if is_partial else data.domains == list(known.domains)
        described = data.describe()
        digests.add(described["images"])
        assert described["split_rule"] == (f"official {title}" if title else "stratified")
        assert (f"official {title} split" in data.protocol) == bool(title)
        # Labels keep the publisher's order, with some classes missing.
        order = [known.class_names.index(folder) for folder in data._loaded[1]]
        assert order == sorted(order)
        assert len(order) == {"ImageNet": 4, "Camelyon17": 2}.get(name, 3)
        for domain, images in data.images.items():
            assert len(set(images.labels.tolist())) == len(order) or domain in known.gaps
            assert images[0].mode == "RGB"
        if not is_partial:
            assert sum(len(part) for part in data.split_parts) == sum(map(len, data.images.values()))
    assert len(digests) == 1 or name in NAMED_DIFFERENTLY


@pytest.mark.parametrize("layout", ["PACS original", "ImageNet CoOp", "CIFAR10 torchvision"])
def test_data_sets_keep_the_contract(load, lay_out, small_files_are_published, layout):
    check_data(lambda: load(LAYOUTS[layout][0], lay_out(layout), cache_dir=None))


def test_a_data_set_leads_from_its_config_to_a_table(lay_out, tmp_path, capsys):
    options = ["--data.partition.init_args.num_clients=2", "--data.held_out=[imagenetv2,imagenet-r]"]
    options += ["--data.allow_missing_classes=true", f"--data.cache_dir={tmp_path / 'cache'}"]
    options += ["--model.clip.name=fedvlp-tiny", "--trainer.rounds=1", "--trainer.local.steps=1"]
    options += ["--trainer.baselines=[]", "--trainer.accelerator=cpu"]
    options += [f"--trainer.default_root_dir={tmp_path / 'runs'}"]
    configs = ["--config=methods/promptfl", "--config=data/imagenet", f"--data.root={lay_out('ImageNet CoOp')}"]
    assert main(["fit", *configs, *options]) == 0
    assert main(["compare", str(tmp_path / "runs"), "--row=last"]) == 0
    assert re.search(r" promptfl last \d", " ".join(capsys.readouterr().out.split()))
    summary = json.loads(next((tmp_path / "runs").glob("*/*/summary.json")).read_text(encoding="utf-8"))
    assert (summary["data"]["name"], summary["data"]["class_name_style"]) == ("ImageNet", "clip")
    assert "official train/val split" in summary["protocol"]
    assert {"test", "held_out/ImageNetV2", "held_out/ImageNet-R"} <= set(summary["accuracy"]["last round (1)"])


@pytest.mark.parametrize("known", DESCRIPTIONS, ids=lambda known: known.name)
def test_each_data_set_has_a_config(known):
    content = read_yaml(Path(find_config(known.config)))["data"]
    assert content["class_path"] == known.name
    # Several domains are clients; a single domain is divided among clients with different class distributions.
    divided = {"class_path": "Dirichlet", "init_args": {"num_clients": 10}}
    partition = content.get("init_args", {}).get("partition")
    assert partition == (divided if len(known.domains) == 1 or known.name == "ImageNet" else None)


def test_the_official_split_comes_from_the_lists(load, lay_out):
    data = load("PACS", lay_out("PACS original"), held_out="sketch")
    by_name = {part.name: part for part in data.split_parts}
    for domain in ("art_painting", "cartoon", "photo"):
        rows = by_name[f"validation/{domain}"].rows_by_domain[domain]
        assert {data.images[domain].names[row].rsplit("/")[-1] for row in rows} == {"4.png"}
    assert len(by_name["held_out/sketch"]) == 15
    described = data.describe()
    assert (described["validation_fraction"], described["split_rule"]) == (None, "official train/crossval")
    drawn = load("PACS", lay_out("PACS original"), held_out="sketch", split="stratified")
    assert drawn.describe()["split_rule"] == "stratified"
    assert "official" not in drawn.protocol
    assert drawn.describe()["images"] == described["images"]
    assert drawn.split_hash != data.split_hash


def test_missing_official_roles_are_drawn_from_training_images(load, lay_out):
    data = load("DomainNet", lay_out("DomainNet Dassl"), validation_fraction=0.34)
    by_name = {part.name: part for part in data.split_parts}
    assert [len(by_name[f"{role}/real"]) for role in ("train", "validation", "test")] == [6, 3, 6]
    assert "official test split" in data.protocol
    assert data.describe()["validation_fraction"] == 0.34
    held_out = load("DomainNet", lay_out("DomainNet Dassl"), held_out="real")
    (rows,) = held_out.split_parts[-1].rows_by_domain.values()
    assert {held_out.images["real"].names[row].rsplit("/")[-1] for row in rows} == {"3.png", "4.png"}
    assert "held-out domain: real, official test split only" in held_out.protocol
    pacs = load("PACS", lay_out("PACS original"), test_fraction=0.5)
    by_name = {part.name: part for part in pacs.split_parts}
    assert [len(by_name[f"{role}/photo"]) for role in ("train", "validation", "test")] == [6, 3, 6]


def test_a_missing_test_split_is_reported(load, lay_out, caplog):
    root = lay_out("EuroSAT torchvision")
    assert load("EuroSAT", root).protocol.startswith("all domains seen, no test split")
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "Set data.test_fraction, or add a split." in record.getMessage()
    caplog.clear()
    data = load("EuroSAT", root, test_fraction=0.4)
    assert [len(part) for part in data.split_parts] == [6, 3, 6]
    assert not caplog.records
    with pytest.raises(UserError, match=r"no official split of EuroSAT in .*train"):
        load("EuroSAT", root, split="official").prepare_data()
    with pytest.raises(UserError, match="published: none"):
        load("OfficeHome", lay_out("OfficeHome Dassl"), split="official").prepare_data()


def test_official_test_images_go_before_a_fraction(load, lay_out, caplog):
    root = lay_out("EuroSAT CoOp")
    data = load("EuroSAT", root, test_fraction=0.4)
    assert data.describe() == load("EuroSAT", root).describe()
    assert (data.split_hash, data.protocol) == (load("EuroSAT", root).split_hash, load("EuroSAT", root).protocol)
    assert caplog.messages == [
        "EuroSAT: its official split has test images, so data.test_fraction has no effect. To draw test images, set "
        "data.split=stratified."
    ]
    drawn = load("EuroSAT", root, test_fraction=0.4, split="stratified").describe()
    assert (drawn["test_fraction"], drawn["split_rule"]) == (0.4, "stratified")


def test_class_names_for_prompts(load, lay_out):
    root = lay_out("OfficeHome original")
    assert load("OfficeHome", root).class_names == ["Alarm Clock", "television", "Table"]
    assert load("OfficeHome", root, class_names="plain").class_names == ["Alarm Clock", "TV", "Table"]
    assert load("OfficeHome", root, class_names_map={"TV": "screen"}).class_names[1] == "screen"
    assert load("OfficeHome", root, class_names="plain").describe()["class_name_style"] == "plain"


def test_known_bad_images_and_duplicates_are_skipped_with_a_note(load, tmp_path, caplog):
    kfold(tmp_path / "pacs")
    bad = tmp_path / "pacs" / "kfold" / "sketch" / "dog" / "n02103406_4068-1.png"
    bad.write_bytes(b"")
    with (tmp_path / "pacs" / "kfold" / "sketch_train_kfold.txt").open("a") as file:
        file.write("sketch/dog/n02103406_4068-1.png 1\n")
    load("PACS", tmp_path / "pacs").prepare_data()
    bad.unlink()
    load("PACS", tmp_path / "pacs").prepare_data()
    plain_tree("DomainNet")(tmp_path / "net")
    (tmp_path / "net" / "domain_net_duplicates.txt").write_text("real/see_saw/0.png\nreal/see_saw/1.png\n")
    data = load("DomainNet", tmp_path / "net")
    assert len(data.images["real"]) == 13
    notes = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert notes == [
        "PACS: skipped 1 known bad images: sketch/dog/n02103406_4068-1.png",
        "DomainNet: skipped 2 known duplicates: real/see_saw/0.png, real/see_saw/1.png",
    ]


@pytest.mark.parametrize(("name", "is_reported"), [("VLCS", True), ("Office31", False)])
def test_copies_across_domains_are_refused_of_no_published_data_set(load, tmp_path, caplog, name, is_reported):
    root = plain_tree(name)(tmp_path)
    first, second = sorted(path for path in root.iterdir() if path.is_dir())[:2]
    image = next(path for path in sorted(first.rglob("*")) if path.is_file())
    shutil.copy(image, (second / image.relative_to(first)).with_name("copy.png"))
    load(name, root, held_out=second.name).prepare_data()
    assert [" 1 are both held out and in a source domain" in message for message in caplog.messages] == [
        True
    ] * is_reported


def test_classes_without_images_are_named_unless_they_are_published_gaps(load, tmp_path, lay_out):
    with pytest.raises(UserError, match=r"Expected the 7 classes of PACS.*no domain has elephant, guitar"):
        load("PACS", lay_out("PACS original"), allow_missing_classes=False).prepare_data()
    paths = chain.from_iterable(list_paths("DomainNet").values())
    write_images(tmp_path / "net", [path for path in paths if not path.startswith("painting/t-shirt")])
    load("DomainNet", tmp_path / "net").prepare_data()
    root = without_split("EuroSAT", "eurosat")(tmp_path / "sat")
    with pytest.raises(UserError, match=r"Expected the 10 classes of EuroSAT in .*; no domain has Forest, Herbaceous"):
        load("EuroSAT", root, allow_missing_classes=False).prepare_data()
    (root / "eurosat" / "2750" / "River").mkdir()
    with pytest.raises(UserError, match="Found no valid file for the classes River"):
        load("EuroSAT", root).prepare_data()


def test_wrong_roots(load, tmp_path, lay_out):
    with pytest.raises(UserError, match="there is no such folder"):
        load("PACS", tmp_path / "nowhere").prepare_data()
    (tmp_path / "pets" / "some").mkdir(parents=True)
    with pytest.raises(UserError, match=r"one of: split_zhou_OxfordPets.json, images/… \(CoOp\); .*Found some there"):
        load("OxfordPets", tmp_path / "pets").prepare_data()
    (tmp_path / "pets" / "some").rmdir()
    (tmp_path / "pets").rmdir()
    with pytest.raises(UserError, match="found no folder there, so art_painting, cartoon, photo, sketch are missing"):
        load("PACS", tmp_path).prepare_data()
    write_images(tmp_path, ["x/photo/dog/1.png", "x/Sketch/dog/1.png", "x/splits/1.png"])
    with pytest.raises(UserError, match=r"found Sketch, photo in .*x, so art_painting, cartoon are missing"):
        load("PACS", tmp_path).prepare_data()
    write_images(plain_tree("PACS")(tmp_path / "wrong"), ["photo/cat/1.png"])
    with pytest.raises(UserError, match=r"Expected the class folders of PACS .*; found photo/cat as well"):
        load("PACS", tmp_path / "wrong").prepare_data()
    write_images(tmp_path / "twice", ["Real World/TV/1.png", "RealWorld/TV/1.png"])
    with pytest.raises(UserError, match="Both Real World and RealWorld"):
        load("OfficeHome", tmp_path / "twice").prepare_data()
    with pytest.raises(UserError, match="Did you mean 'sketch'"):
        load("PACS", lay_out("PACS original"), held_out="skech").prepare_data()


def test_all_variants_on_disk_are_held_out(load, lay_out):
    data = load("ImageNet", lay_out("ImageNet CoOp"))
    assert data.held_out_domains == ["ImageNet-A", "ImageNet-R", "ImageNet-Sketch", "ImageNetV2"]
    assert data.source_domains == ["ImageNet"]
    assert {part.name: len(part) for part in data.split_parts} == {
        "train/ImageNet": 8,
        "validation/ImageNet": 4,
        "test/ImageNet": 8,
        "held_out/ImageNet-A": 2,
        "held_out/ImageNet-R": 2,
        "held_out/ImageNet-Sketch": 8,
        "held_out/ImageNetV2": 8,
    }
    for domain, images in data.images.items():
        assert {data.class_names[label] for label in images.labels} == set(FAMILY[domain])
    # Folders of ImageNetV2 are class numbers in the order of the ids.
    numbers = {"tench": "0", "goldfish": "1", "American robin": "15", "toilet paper": "999"}
    names = [name.split("/") for name in data.images["ImageNetV2"].names]
    assert {class_name: file.split("_")[0] for _, class_name, file in names} == numbers
    assert load("ImageNet", lay_out("ImageNet torchvision")).held_out_domains == ["ImageNet-R", "ImageNet-Sketch"]


def test_some_variants(load, lay_out):
    root = lay_out("ImageNet CoOp")
    data = load("ImageNet", root, held_out=["imagenet-rendition", "imagenetv2"])
    assert data.domains == ["ImageNet", "ImageNet-R", "ImageNetV2"]
    assert data.held_out_domains == ["ImageNet-R", "ImageNetV2"]
    assert data.protocol.startswith("held-out domains: ImageNet-R, ImageNetV2; seen domains, official test split")
    with pytest.raises(UserError, match="Only ImageNet has training images"):
        load("ImageNet", root, held_out="ImageNet").prepare_data()
    with pytest.raises(UserError, match="Did you mean 'ImageNet-R'"):
        load("ImageNet", root, held_out="ImageNet-Q").prepare_data()
