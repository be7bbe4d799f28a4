"""Read the labels of images that have several labels, in the formats of the publishers.

A function reads one file. An image is named by its file's name, or by its path below the layout's folder. It may be
yielded several times, each time with some of its labels.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedvlp.core.several_labels import SEPARATOR
from fedvlp.data.rows import UNKNOWN


class LabelledImage(NamedTuple):
    """Some labels of an image, each with the mark "" if it applies, or "?" if that is unknown."""

    name: str
    marks: dict[str, str]
    group: str = ""


def read_voc(path: Path) -> Iterator[LabelledImage]:
    """Read Pascal VOC's list of one label: 1, -1, or 0 if the image shows only objects marked difficult."""
    label = path.stem.rpartition("_")[0]
    marks_of = {"1": {label: ""}, "0": {label: UNKNOWN}, "-1": {}}
    for line in path.read_text(encoding="utf-8").splitlines():
        image, value = line.split()
        yield LabelledImage(f"{image}.jpg", marks_of[value])


def read_coco(path: Path) -> Iterator[LabelledImage]:
    """Read COCO's annotated objects, one by one; images without objects are not named."""
    content = json.loads(path.read_text(encoding="utf-8"), object_hook=_drop_outline)
    names = {category["id"]: category["name"] for category in content["categories"]}
    files = {image["id"]: image["file_name"] for image in content["images"]}
    for annotation in content["annotations"]:
        yield LabelledImage(files[annotation["image_id"]], {names[annotation["category_id"]]: ""})


def _drop_outline(entry: dict[str, Any]) -> dict[str, Any]:
    # Outlines are most of the file, and would need gigabytes of memory.
    entry.pop("segmentation", None)
    return entry


def read_chest_xray14(path: Path) -> Iterator[LabelledImage]:
    """Read NIH's table of findings; "No Finding" is no label."""
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        findings = row["Finding Labels"].split(SEPARATOR)
        marks = {finding: "" for finding in findings if finding != "No Finding"}
        yield LabelledImage(row["Image Index"], marks, row["Patient ID"])


def read_chexpert(path: Path) -> Iterator[LabelledImage]:
    """Read CheXpert's table: 1, 0, -1 for uncertain observations, or nothing if the report does not mention one."""
    mark_of = {"1.0": "", "-1.0": UNKNOWN}
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        # Paths start with the name of the folder, which depends on the size of the images.
        name = row["Path"].partition("/")[2]
        observations = list(row.items())[5:]
        marks = {label: mark_of[value] for label, value in observations if value not in ("", "0.0")}
        yield LabelledImage(name, marks, name.split("/")[1])


FORMATS = {"voc": read_voc, "coco": read_coco, "chest_xray14": read_chest_xray14, "chexpert": read_chexpert}
