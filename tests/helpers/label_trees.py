"""Small copies of the data sets with several labels, in the layouts of their publishers."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path

from tests.helpers.benchmark_trees import tree, write_images

# Sets of labels by image; "" for an image without labels.
VOC = {
    "train": ["dog|person", "dog", "?dog|person", "person", "person|sofa", "sofa"] * 2,
    "test": ["dog|person", "dog", "person|?sofa", "sofa"],
}
COCO = {
    "train": ["cat|dining table", "cat", "dining table", "dining table|tv", "tv", ""] * 2,
    "val": ["cat|tv", "cat", ""],
}
FINDINGS = ["edema|mass", "edema", "", "mass", "pleural thickening", "", "edema|pleural thickening", ""]
OBSERVATIONS = {
    "train": ["edema|?pneumonia", "edema", "no finding", "pneumonia", "", "edema|pneumonia", "no finding", "?edema"],
    "valid": ["edema", "no finding", "pneumonia"],
}


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_rows(path: Path, rows: list[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@tree
def voc(root: Path) -> None:
    """Write VOC 2007 with a list for each label and part: 1, -1, or 0 if all its objects are difficult."""
    folder = root / "VOCdevkit" / "VOC2007"
    number = 0
    for part, name in (("train", "trainval"), ("test", "test")):
        images = []
        for labels in VOC[part]:
            number += 1
            images.append((f"{number:06d}", labels.split("|")))
        write_lines(folder / "ImageSets" / "Main" / f"{name}.txt", [image for image, _ in images])
        for label in ("dog", "person", "sofa"):
            values = [1 if label in labels else 0 if f"?{label}" in labels else -1 for _, labels in images]
            lines = [f"{image} {value:2}" for (image, _), value in zip(images, values, strict=True)]
            write_lines(folder / "ImageSets" / "Main" / f"{label}_{name}.txt", lines)
        write_images(folder / "JPEGImages", [f"{image}.jpg" for image, _ in images])


@tree
def coco(root: Path, images: str = ".") -> None:
    """Write COCO 2014 with an entry for each object; the first object of an image occurs twice."""
    ids = {"cat": 17, "dining table": 67, "tv": 72}
    for part, sets in COCO.items():
        names = {number: f"COCO_{part}2014_{number:012d}.jpg" for number in range(1, len(sets) + 1)}
        objects = []
        for number, labels in zip(names, sets, strict=True):
            present = [label for label in labels.split("|") if label]
            for label in (*present, *present[:1]):
                objects.append({"image_id": number, "category_id": ids[label], "segmentation": [[1.5, 2.5]]})
        content = {
            "images": [{"id": number, "file_name": name} for number, name in names.items()],
            "annotations": objects,
            "categories": [{"id": number, "name": name} for name, number in ids.items()],
        }
        path = root / "annotations" / f"instances_{part}2014.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
        write_images(root / images / f"{part}2014", names.values())


@tree
def chest_xray14(root: Path, table: str = "Data_Entry_2017.csv", folder: str = "images") -> None:
    """Write ChestX-ray14 with two images of each patient; the last patient's images are for testing."""
    rows = []
    for index, labels in enumerate(FINDINGS):
        findings = "|".join(label.title().replace(" ", "_") for label in labels.split("|")) or "No Finding"
        name = f"{index // 2:08d}_{index % 2:03d}.png"
        rows.append(
            {"Image Index": name, "Finding Labels": findings, "Follow-up #": index % 2, "Patient ID": index // 2}
        )
    write_rows(root / table, rows)
    names = [row["Image Index"] for row in rows]
    write_lines(root / "train_val_list.txt", names[:-2])
    write_lines(root / "test_list.txt", names[-2:])
    write_images(root / folder, names)


@tree
def chexpert(root: Path, folder: str = "CheXpert-v1.0-small") -> None:
    """Write CheXpert with two images of each patient."""
    first = {"Sex": "Female", "Age": 68, "Frontal/Lateral": "Frontal", "AP/PA": "AP"}
    for part, sets in OBSERVATIONS.items():
        rows = []
        for index, labels in enumerate(sets):
            path = f"{part}/patient{index // 2 + 100 * (part == 'valid'):05d}/study{index % 2 + 1}/view1_frontal.jpg"
            values = {}
            for label in ("no finding", "edema", "pneumonia"):
                # A report may deny an observation, or not mention it.
                absent = "0.0" if index % 2 else ""
                marks = {label: "1.0", f"?{label}": "-1.0"}
                values[label.title()] = next((marks[each] for each in labels.split("|") if each in marks), absent)
            rows.append({"Path": f"{folder}/{path}", **first, **values})
        write_rows(root / folder / f"{part}.csv", rows)
        write_images(root / folder, [row["Path"].partition("/")[2] for row in rows])


TREES = {
    "VOC2007": ("VOC2007", voc()),
    "COCO2014": ("COCO2014", coco()),
    "COCO2014 in images": ("COCO2014", coco(images="images")),
    "ChestXray14": ("ChestXray14", chest_xray14()),
    "ChestXray14 in folders": ("ChestXray14", chest_xray14("Data_Entry_2017_v2020.csv", "images_001/images")),
    "CheXpert": ("CheXpert", chexpert()),
    "CheXpert large": ("CheXpert", chexpert("CheXpert-v1.0")),
}
"""Layouts by name, each with its data set and a small tree of files."""
