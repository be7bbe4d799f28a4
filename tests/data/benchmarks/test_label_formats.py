"""Published data sets with several labels: labels, unknown labels, groups, splits, counts, and damaged files."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedvlp
from fedvlp.catalog.description import DATA_SETS
from fedvlp.commands.cli import main
from fedvlp.data.benchmarks.comparison import compare
from fedvlp.data.benchmarks.manifest import read_manifest
from fedvlp.utils.config_files import find_config, read_yaml
from fedvlp.utils.errors import UserError
from tests.helpers.label_trees import COCO, FINDINGS, OBSERVATIONS, TREES, VOC, chest_xray14, chexpert, coco, voc

SETS = {
    "VOC2007": [*VOC["train"], *VOC["test"]],
    # Images without annotated objects are not used.
    "COCO2014": [labels for labels in (*COCO["train"], *COCO["val"]) if labels],
    "ChestXray14": FINDINGS,
    "CheXpert": [*OBSERVATIONS["train"], *OBSERVATIONS["valid"]],
}
TESTED = {"VOC2007": VOC["test"], "COCO2014": ["cat|tv", "cat"], "ChestXray14": FINDINGS[-2:]} | {
    "CheXpert": OBSERVATIONS["valid"]
}


def sets_of(data, rows):
    """List the set of labels of some images from their targets."""
    names, targets = data._label_targets
    (images,) = data.images.values()
    marks = {0: None, 1: "", -1: "?"}
    sets = []
    for row in targets[images.labels[rows]]:
        present = zip(names, np.nan_to_num(row, nan=-1).astype(int), strict=True)
        sets.append("|".join(marks[value] + name for name, value in present if value))
    return sets


@pytest.mark.parametrize("layout", TREES)
def test_labels_and_official_split(load, tmp_path, layout):
    name, write = TREES[layout]
    data = load(name, write(tmp_path))
    known = data.description
    (images,) = data.images.values()
    assert Counter(sets_of(data, np.arange(len(images)))) == Counter(SETS[name])
    assert data.class_names == sorted(
        {label for labels in SETS[name] for label in labels.replace("?", "").split("|")} - {""}
    )
    assert f"official {known.layouts[0].title}" in data.describe()["split_rule"]
    (test,) = [part for part in data.split_parts if part.role == "test"]
    assert Counter(sets_of(data, test.rows_by_domain[name])) == Counter(TESTED[name])
    assert images[0].mode == "RGB"


@pytest.mark.parametrize("name", ["COCO2014", "ChestXray14", "CheXpert"])
def test_layouts_of_one_data_set_have_the_same_images(load, tmp_path, name):
    layouts = [layout for layout in TREES if TREES[layout][0] == name]
    digests = {load(name, TREES[layout][1](tmp_path / layout)).describe()["images"] for layout in layouts}
    assert (len(layouts), len(digests)) == (2, 1)


@pytest.mark.parametrize(("name", "write"), [("ChestXray14", chest_xray14()), ("CheXpert", chexpert())])
def test_images_of_a_patient_stay_together(load, tmp_path, name, write):
    data = load(name, write(tmp_path), partition=fedvlp.Dirichlet(num_clients=2), validation_fraction=0.3)
    owners = {}
    for part in data.split_parts:
        for patient in data.groups[name][part.rows_by_domain[name]]:
            owners.setdefault(patient, set()).add(part.name)
    assert len(owners) == {"ChestXray14": 4, "CheXpert": 6}[name]
    assert all(len(parts) == 1 for parts in owners.values())
    assert {part.role for part in data.split_parts} == {"train", "validation", "test"}


def small(name):
    """Describe a data set as if the small tree had been published."""
    known = DATA_SETS[name]
    labels = Counter(label for labels in SETS[name] for label in labels.split("|") if label and "?" not in label)
    tested = len(TESTED[name])
    counts = {"train": len(SETS[name]) - tested, "test": tested}
    return replace(
        known,
        class_names=tuple(sorted(labels)),
        counts={name: dict(labels)},
        domain_counts={name: len(SETS[name])},
        layouts=(replace(known.layouts[0], split_counts={name: counts}),),
    )


@pytest.mark.parametrize("name", SETS)
def test_published_counts_are_those_of_images_and_labels(tmp_path, name):
    root = TREES[name][1](tmp_path)
    findings = compare(read_manifest(root, small(name)), small(name))
    assert findings.problems == []


def test_differing_counts_are_reported_by_label(tmp_path, capsys):
    root = voc()(tmp_path)
    known = small("VOC2007")
    path = root / "VOCdevkit/VOC2007/ImageSets/Main/sofa_trainval.txt"
    path.write_text(path.read_text().replace("000001 -1", "000001  0"))
    assert compare(read_manifest(root, known), known).problems == []  # only images with the label are counted
    path.write_text(path.read_text().replace("000001  0", "000001  1"))
    lines = ["VOC2007: 16 images in all, as published (sofa +1)"]
    assert compare(read_manifest(root, known), known).problems == lines
    known = replace(known, counts={}, class_names=(*known.class_names, "train"))
    assert compare(read_manifest(root, known), known).problems == ["VOC2007: no image of train"]
    assert main(["data", "check", "voc2007", f"--root={root}"]) == 1
    printed = capsys.readouterr().out
    assert "16 images, 9,963 published (aeroplane -442, bicycle -482, " in printed
    assert "12 train images, 5,011 published; 4 test images, 4,952 published" in printed


@pytest.mark.parametrize(
    ("name", "write", "file", "old", "new", "message"),
    [
        ("VOC2007", voc(), "*/*/ImageSets/Main/dog_test.txt", "000013  1", "000013", r"of VOC in .*/dog_test.txt"),
        ("VOC2007", voc(), "*/*/ImageSets/Main/dog_test.txt", "000013  1", "000013  2", r"be read \(KeyError: '2'\)"),
        ("VOC2007", voc(), "*/*/ImageSets/Main/dog_test.txt", "000013", "000099", r"1 images .*exist: 000099.jpg"),
        ("COCO2014", coco(), "annotations/*val2014.json", '"tv"', '"televisor"', "Expected a class .*televisor"),
        ("COCO2014", coco(), "annotations/*val2014.json", '"images"', '"pictures"', r"KeyError: 'images'"),
        ("ChestXray14", chest_xray14(), "Data*.csv", "Finding Labels", "Labels", r"KeyError: 'Finding Labels'"),
        ("CheXpert", chexpert(), "*/train.csv", ",-1.0", ",2.0", r"train.csv, but .*KeyError: '2.0'"),
    ],
)  # fmt: skip
def test_damaged_files(load, tmp_path, name, write, file, old, new, message):
    (path,) = write(tmp_path).glob(file)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=message):
        load(name, tmp_path).prepare_data()


def test_missing_parts(load, tmp_path):
    root = voc()(tmp_path)
    with pytest.raises(UserError, match=r"Expected the 20 classes of VOC2007 .*; no domain has aeroplane, bicycle"):
        load("VOC2007", root, allow_missing_classes=False).prepare_data()
    for path in root.rglob("*_test.txt"):
        path.unlink()
    with pytest.raises(UserError, match=r"Expected VOC2007 in .* as one of: VOC2007/ImageSets/Main/<label>_{trainval"):
        load("VOC2007", root).prepare_data()
    shutil.copy(chest_xray14()(tmp_path / "chest") / "train_val_list.txt", tmp_path / "chest/test_list.txt")
    assert load("ChestXray14", tmp_path / "chest").official.has("test")


def test_a_run_leads_from_the_config_to_a_table(tmp_path, capsys):
    options = ["--data.partition.init_args.num_clients=2", "--data.allow_missing_classes=true", "--data.cache_dir=null"]
    options += [
        "--model.clip=fedvlp-tiny",
        "--trainer.rounds=1",
        "--trainer.local.steps=1",
        "--trainer.accelerator=cpu",
    ]
    configs = ["--config=methods/promptfl", "--config=data/chexpert", f"--data.root={chexpert()(tmp_path / 'images')}"]
    assert main(["fit", *configs, *options, f"--trainer.default_root_dir={tmp_path / 'runs'}"]) == 0
    assert main(["compare", str(tmp_path / "runs"), "--row=last"]) == 0
    assert "promptfl last" in " ".join(capsys.readouterr().out.split())
    (path,) = tmp_path.glob("runs/*/*/summary.json")
    summary = json.loads(path.read_text(encoding="utf-8"))
    assert summary["data"]["negative_class"] == "chest radiograph"
    assert "official train/valid split" in summary["protocol"]
    assert summary["metrics"]["last round"]["test/CheXpert"]["images"] == 3


def test_the_negative_class_is_no_label():
    for name, known in DATA_SETS.items():
        if known.several_labels:
            assert known.class_names == tuple(sorted(known.class_names)), name
            negative = read_yaml(Path(find_config(known.config)))["data"]["init_args"].get("negative_class", "image")
            assert negative not in known.class_names
