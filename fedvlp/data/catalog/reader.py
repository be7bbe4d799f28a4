"""Reads the facts of the published data sets: a TOML file each, and a table of its classes."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedvlp.data.catalog.description import (
    ClassFolders,
    ClassNameStyle,
    Description,
    HubSource,
    ImageLists,
    Layout,
    LayoutPart,
    PixelBatches,
    SplitFile,
    TorchvisionFolder,
    TorchvisionSource,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
# In the order in which `fedvlp data list` prints them.
FILES = (
    "pacs", "office_home", "vlcs", "domain_net", "terra_incognita", "domain_net_10", "domain_net_126", "fed_isic2019",
    "camelyon17", "office31", "image_clef_da", "imagenet", "caltech101", "oxford_pets", "stanford_cars", "flowers102",
    "food101", "fgvc_aircraft", "sun397", "dtd", "eurosat", "ucf101", "cifar10", "cifar100", "tiny_imagenet",
)  # fmt: skip
PARTS: dict[str, type[LayoutPart]] = {
    "class_folders": ClassFolders,
    "image_lists": ImageLists,
    "pixel_batches": PixelBatches,
    "split_file": SplitFile,
    "torchvision": TorchvisionFolder,
}
SEPARATOR = "|"
"""Separates several entries of one cell of a table of classes."""


@dataclass(frozen=True)
class ClassTable:
    """What is published of the classes of a data set.

    Attributes:
        class_names: the classes, in the order of the table.
        counts: images of each class by domain, for the domains of which they are published.
        spellings: the class that another spelling stands for.
        domain_classes: the classes that a domain has, for the domains that have only some.
    """

    class_names: tuple[str, ...]
    counts: Mapping[str, Mapping[str, int]]
    spellings: Mapping[str, str]
    domain_classes: Mapping[str, tuple[str, ...]]


def read_classes(file: str) -> ClassTable:
    """Reads a table of classes; a column that is neither ``class``, ``also`` nor ``of`` has the counts of a domain."""
    with (FOLDER / "classes" / f"{file}.csv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    counts: dict[str, dict[str, int]] = {}
    for domain in [column for column in rows[0] if column not in ("class", "also", "of")]:
        class_counts = {row["class"]: int(row[domain]) for row in rows if row[domain]}
        if class_counts:  # nothing is published of a domain whose column is empty
            counts[domain] = class_counts
    spellings: dict[str, str] = {}
    domain_classes: dict[str, tuple[str, ...]] = {}
    for row in rows:
        spellings |= dict.fromkeys(_entries(row.get("also")), row["class"])
        for domain in _entries(row.get("of")):
            domain_classes[domain] = (*domain_classes.get(domain, ()), row["class"])
    return ClassTable(tuple(row["class"] for row in rows), counts, spellings, domain_classes)


def _entries(cell: str | None) -> list[str]:
    return cell.split(SEPARATOR) if cell else []


def read_description(file: str) -> Description:
    """Reads a data set's facts; keys of the TOML file are the fields of :class:`Description`, "" stands for None."""
    content = tomllib.loads((FOLDER / "data_sets" / f"{file}.toml").read_text(encoding="utf-8"))
    if "subset_of" in content:
        return _subset(file, content)
    classes = read_classes(file)
    totals = {domain: sum(class_counts.values()) for domain, class_counts in classes.counts.items()}
    sources = {"hub": HubSource, "torchvision": TorchvisionSource}
    for key, source in sources.items():
        if key in content:
            content[key] = source(**content[key])
    facts = {"domain_counts": totals} | {key: _frozen(value) for key, value in content.items()}
    # Spellings of the table come first; a TOML file adds those that are no property of a single class.
    facts["class_spellings"] = {**classes.spellings, **content.get("class_spellings", {})}
    facts["layouts"] = tuple(_layout(layout) for layout in content.get("layouts", ()))
    return Description(
        config=f"data/{file}",
        class_names=classes.class_names,
        counts=classes.counts,
        domain_classes=classes.domain_classes,
        **facts,
    )


def _layout(content: Mapping[str, Any]) -> Layout:
    parts = []
    for part in content["parts"]:
        fields = {key: _frozen(value) for key, value in part.items() if key != "reader"}
        parts.append(PARTS[part["reader"]](**fields))
    return Layout(**{**content, "parts": tuple(parts)})


def _subset(file: str, content: Mapping[str, Any]) -> Description:
    """Describes some classes and domains of a larger data set."""
    whole = read_description(content["subset_of"])
    class_names = tuple(content["classes"]) if "classes" in content else read_classes(file).class_names
    counts: dict[str, dict[str, int]] = {}
    # Of domains whose counts by class are not published, nothing is known of a part of the classes.
    totals: dict[str, int | None] = dict.fromkeys(content["domains"])
    for domain, class_counts in whole.counts.items():
        if domain in totals:
            counts[domain] = {name: class_counts[name] for name in class_names}
            totals[domain] = sum(counts[domain].values())
    return replace(
        whole,
        name=content["name"],
        config=f"data/{file}",
        source=content["source"],
        class_names=class_names,
        counts=counts,
        domain_counts=totals,
        split_counts={},
        known_gaps=(),
        list_folders=tuple(content.get("list_folders", whole.list_folders)),
        is_subset=True,
        hub=None,
    )


def _frozen(value: Any) -> Any:
    """Makes tuples of TOML's lists, and None of its empty strings, which it has in place of null."""
    if isinstance(value, list):
        return tuple(_frozen(entry) for entry in value)
    if isinstance(value, dict):
        return {key: _frozen(entry) for key, entry in value.items()}
    return None if value == "" else value


DESCRIPTIONS: tuple[Description, ...] = tuple(read_description(file) for file in FILES)
DATA_SETS: dict[str, Description] = {description.name: description for description in DESCRIPTIONS}
"""By name."""


def prompt_names(data_set: str, class_names: Sequence[str], style: ClassNameStyle) -> list[str]:
    """Returns what prompts call the classes of a data set.

    No name has `_` or `-`, since text encoders read them as spaces: a result names what the prompts said.

    Args:
        data_set: name of the data set.
        class_names: names of its class folders.
        style: "plain" makes spaces of ``_`` and ``-``; "clip" also takes the words that CLIP has read more often.

    >>> prompt_names("OfficeHome", ["Alarm_Clock", "TV"], "clip")
    ['Alarm Clock', 'television']
    >>> prompt_names("OfficeHome", ["Alarm_Clock", "TV"], "plain")
    ['Alarm Clock', 'TV']
    """
    renamed = DATA_SETS[data_set].clip_names if style == "clip" and data_set in DATA_SETS else {}
    return [renamed.get(name, name.replace("_", " ").replace("-", " ")) for name in class_names]
