"""What is known of a published data set before a byte of it is read, and the layouts in which users have it.

A data set has a file ``data_sets/NAME.toml``, whose keys are the attributes of the classes here, and a table
``classes/NAME.csv``. Paths in layouts are relative to the folder in which a layout is found, with forward slashes.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

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
SplitName = Literal["train", "validation", "test"]
ClassNameStyle = Literal["clip", "plain"]


@dataclass(frozen=True)
class SplitFile:
    """CoOp's list of the images of a data set: one JSON file of paths, labels and class names in three parts.

    Attributes:
        file: the file.
        images: the folder that its paths are relative to.
    """

    file: str
    images: str


@dataclass(frozen=True)
class TorchvisionFolder:
    """A folder that a class of ``torchvision.datasets`` reads.

    Attributes:
        class_name: name of the class.
        folder: what torchvision calls the folder, such as "dtd/dtd".
        holds: what must lie in it.
        splits: the role of each of the class's splits; empty where it has none.
    """

    class_name: str
    folder: str
    holds: tuple[str, ...]
    splits: Mapping[str, SplitName] = field(default_factory=dict)


@dataclass(frozen=True)
class TorchvisionPixels(TorchvisionFolder):
    """The same of CIFAR, whose files hold the pixels of many images; its splits are train and test."""


@dataclass(frozen=True)
class FolderPerClass:
    """A folder for each class, with images at any depth.

    Attributes:
        folder: the folder of the class folders.
        role: what its images do; None where that is not said.
        domain: whose images they are; empty where there is one domain.
        is_optional: whether it may be missing.
        ignored: folders that are no class.
    """

    folder: str
    role: SplitName | None = None
    domain: str = ""
    is_optional: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageLists:
    """Text files with a line for each image.

    Attributes:
        files: the lists, with the role of their images; None where the lines, or nothing, say it.
        line: regular expression of a whole line. Its group ``class`` names the class; ``domain`` the domain where there
            are several, ``part`` one of ``parts``.
        image: where the image of a line is: its groups by name in braces, and ``{class_name}``.
        parts: the role of each part that a line may name; of a part that is not here nothing is said.
        header: the first line, where that is none of an image.
    """

    files: Mapping[str, SplitName | None]
    line: str
    image: str
    parts: Mapping[str, SplitName] = field(default_factory=dict)
    header: str = ""


LayoutPart = SplitFile | TorchvisionFolder | TorchvisionPixels | FolderPerClass | ImageLists
KINDS: dict[str, type[LayoutPart]] = {kind.__name__: kind for kind in get_args(LayoutPart)}


@dataclass(frozen=True)
class Layout:
    """One layout in which users have a data set.

    Attributes:
        of: who leaves it so, such as "CoOp".
        pattern: what is in its folder, for people.
        parts: what says which images there are; all that are not optional must be there.
        title: the parts of its split, as results name them, such as "CoOp train/val/test"; empty where it has none.
        domain_counts: images of each domain where that is not the data set's own number.
        split_counts: images of each domain by role.
    """

    of: str
    pattern: str
    parts: tuple[LayoutPart, ...]
    title: str = ""
    domain_counts: Mapping[str, int] = field(default_factory=dict)
    split_counts: Mapping[str, Mapping[SplitName, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class HubSource:
    """A copy of a data set on the Hugging Face hub: ``data/*.parquet`` of rows with an image, its domain and its label.

    Attributes:
        repository: the data set's repository, ``owner/name``.
        download_bytes: how much is downloaded, about.
        terms: the owners' terms, as far as they are known.
        revision: the commit; None where none is known, so that the newest is taken and named.
        domain_column: the column that says which domain an image is of.
        has_official_split: whether the files named ``train-`` and ``test-`` are the parts of the official split.
    """

    repository: str
    download_bytes: int
    terms: str
    revision: str | None = None
    domain_column: str = "domain"
    has_official_split: bool = False


@dataclass(frozen=True)
class TorchvisionSource:
    """A data set that a class of torchvision downloads from its publisher.

    Attributes:
        reader: name of the class in ``torchvision.datasets``.
        download_bytes: how much is downloaded, about.
    """

    reader: str
    download_bytes: int


@dataclass(frozen=True)
class Description:
    """The facts of one data set: its names, how many images it has, and the layouts in which users have it.

    Attributes:
        name: what the data set, and its data module, is called.
        summary: what it is, in a sentence or two, as the help of its data module says.
        config: name of its config.
        source: the project that publishes it, for those who do not have it.
        class_names: the classes: sorted by name, or in the order of the labels that CoOp or the publisher gives them.
        counts: images of each class, by domain, where they are published; the domains are those of ``domain_counts``.
        domain_counts: images of each domain; None where no number is published.
        split_counts: images of each domain in parts of the official split, by role.
        spellings: other names of domains, by how they are spelled on disk; case, spaces, ``_`` and ``-`` count nothing.
        class_spellings: other names of classes, likewise; a number is one only where the publisher numbers them.
        lists: for each style of list files, the role of a list ``<domain>_<ending>.txt``; "all" lists give no role.
        list_folders: where lists may lie, beside or below the images.
        split_folders: folders between domain and class, with the role of what is in them; None for no role.
        has_numbered_classes: whether class folders may be named by their number, from 0.
        tests_on_list: whether of a held-out domain only its official test images test, and not all.
        known_bad: images that many leave out because they can't be read.
        duplicates_list: name of a list of images to leave out, where the data set is known to have them.
        known_gaps: classes that a domain is known to lack.
        may_lack_classes: whether domains lack classes, and it is not published which.
        is_subset: whether it is a part of a larger data set, so that other classes may lie in the folders.
        licence: what its owners allow, as far as known; empty where that is said elsewhere.
        layouts: those in which it is had besides folders domain/class/image; the first that is found is read.
        is_tree: whether it is had as folders domain/class/image.
        domain_classes: the classes that a domain has, where it is published that it has not all.
        has_copies: whether images are there twice as it was published, on both sides of a split as well.
        clip_names: what CLIP has read more often than the name of a class folder.
        hub: where the Hugging Face hub has it.
        torchvision: how torchvision downloads it.
    """

    name: str
    config: str
    source: str
    class_names: tuple[str, ...]
    domain_counts: Mapping[str, int | None]
    summary: str = ""
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    split_counts: Mapping[str, Mapping[SplitName, int]] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)
    class_spellings: Mapping[str, str] = field(default_factory=dict)
    lists: tuple[Mapping[str, SplitName | None], ...] = ()
    list_folders: tuple[str, ...] = (".",)
    split_folders: Mapping[str, SplitName | None] = field(default_factory=dict)
    has_numbered_classes: bool = False
    tests_on_list: bool = False
    known_bad: tuple[str, ...] = ()
    duplicates_list: str = ""
    known_gaps: tuple[tuple[str, str], ...] = ()
    may_lack_classes: bool = False
    is_subset: bool = False
    licence: str = ""
    layouts: tuple[Layout, ...] = ()
    is_tree: bool = True
    domain_classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    has_copies: bool = False
    clip_names: Mapping[str, str] = field(default_factory=dict)
    hub: HubSource | None = None
    torchvision: TorchvisionSource | None = None

    @property
    def short_name(self) -> str:
        """What the command line calls it, such as ``office_home``."""
        return self.config.removeprefix("data/")

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains, sorted."""
        return tuple(sorted(self.domain_counts))

    @property
    def images(self) -> int | None:
        """All images of all domains; None where not all numbers are published."""
        numbers = [number for number in self.domain_counts.values() if number is not None]
        return sum(numbers) if len(numbers) == len(self.domain_counts) else None

    @property
    def official_parts(self) -> str:
        """The parts of the official split as it is usually had, such as "train/crossval"; empty without one."""
        for layout in self.layouts:
            if layout.title:
                return layout.title
        parts = self.lists[0] if self.lists else self.split_folders
        # "full" stands for the other parts together.
        names = [name.removesuffix("_kfold") for name, role in parts.items() if role and name != "full"]
        return "/".join(names)

    @property
    def download_source(self) -> HubSource | TorchvisionSource | None:
        """Where a command can download it from."""
        return self.hub or self.torchvision

    def in_layout(self, layout: Layout | None, domains: Collection[str]) -> Description:
        """Returns what was published of the domains that are on disk, in the layout in which they are."""
        counts = {**self.domain_counts, **(layout.domain_counts if layout else {})}
        split_counts = layout.split_counts if layout else self.split_counts
        present = {name: count for name, count in counts.items() if name in domains}
        return replace(self, domain_counts=present, split_counts=split_counts)

    def domain_of(self, folder: str) -> str | None:
        """Returns the domain that a name on disk stands for, or None."""
        return self._domains.get(normalise_name(folder))

    def class_of(self, folder: str) -> str | None:
        """Returns the class that a name on disk stands for, or None."""
        if self.has_numbered_classes and folder.isdecimal():
            return dict(enumerate(self.class_names)).get(int(folder))
        return self._classes.get(normalise_name(folder))

    @cached_property
    def _domains(self) -> dict[str, str]:
        return _by_normalised_name(self.domain_counts, self.spellings)

    @cached_property
    def _classes(self) -> dict[str, str]:
        return _by_normalised_name(self.class_names, self.class_spellings)


def _by_normalised_name(names: Collection[str], spellings: Mapping[str, str]) -> dict[str, str]:
    spelled = {name: name for name in names} | dict(spellings)
    return {normalise_name(spelling): name for spelling, name in spelled.items()}


def normalise_name(name: str) -> str:
    """Returns letters and digits in lower case: all in which two spellings of one name agree.

    >>> normalise_name("Real World"), normalise_name("Real_World"), normalise_name("t-shirt")
    ('realworld', 'realworld', 'tshirt')
    """
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def read_description(file: str) -> Description:
    """Reads a data set's facts from its TOML file and its table of classes."""
    content = tomllib.loads((FOLDER / "data_sets" / f"{file}.toml").read_text(encoding="utf-8"))
    facts = {key: _frozen(value) for key, value in content.items()}
    facts["layouts"] = tuple(map(_layout, content.get("layouts", ())))
    for key, source in (("hub", HubSource), ("torchvision", TorchvisionSource)):
        if key in content:
            facts[key] = source(**content[key])
    with (FOLDER / "classes" / f"{file}.csv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    counts = _class_counts(rows)
    spellings: dict[str, str] = {}
    domain_classes: dict[str, tuple[str, ...]] = {}
    # Several entries of a cell are separated by a bar.
    for row in rows:
        spellings |= dict.fromkeys(filter(None, row.get("also", "").split("|")), row["class"])
        for domain in filter(None, row.get("of", "").split("|")):
            domain_classes[domain] = (*domain_classes.get(domain, ()), row["class"])
    # Spellings of the table come first; a TOML file adds those that are no property of a single class.
    facts["class_spellings"] = spellings | facts.get("class_spellings", {})
    facts.setdefault("domain_counts", {domain: sum(numbers.values()) for domain, numbers in counts.items()})
    return Description(
        config=f"data/{file}",
        class_names=tuple(row["class"] for row in rows),
        counts=counts,
        domain_classes=domain_classes,
        **facts,
    )


def _class_counts(rows: Sequence[Mapping[str, str]]) -> dict[str, dict[str, int]]:
    """Returns the images of each class by domain; a column other than ``class``, ``also`` and ``of`` is a domain."""
    counts = {}
    for domain in [column for column in rows[0] if column not in ("class", "also", "of")]:
        class_counts = {row["class"]: int(row[domain]) for row in rows if row[domain]}
        # Nothing is published of a domain whose column is empty.
        if class_counts:
            counts[domain] = class_counts
    return counts


def _layout(content: Mapping[str, Any]) -> Layout:
    parts = []
    for part in content["parts"]:
        fields = {key: _frozen(value) for key, value in part.items() if key != "kind"}
        parts.append(KINDS[part["kind"]](**fields))
    return Layout(**{**content, "parts": tuple(parts)})


def _frozen(value: Any) -> Any:
    """Makes tuples of TOML's lists, and None of its empty strings, which it has in place of null."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {key: _frozen(entry) for key, entry in value.items()}
    return None if value == "" else value


DESCRIPTIONS: tuple[Description, ...] = tuple(map(read_description, FILES))
DATA_SETS: dict[str, Description] = {description.name: description for description in DESCRIPTIONS}
"""By name."""


def prompt_names(data_set: str, class_names: Sequence[str], style: ClassNameStyle) -> list[str]:
    """Returns what prompts call the classes of a data set.

    No name has `_`, since text encoders read it as a space: a result names what the prompts said.

    Args:
        data_set: name of the data set.
        class_names: names of its class folders.
        style: "plain" makes spaces of ``_``; "clip" also takes the words that CLIP has read more often.

    >>> prompt_names("OfficeHome", ["Alarm_Clock", "TV"], "clip")
    ['Alarm Clock', 'television']
    >>> prompt_names("DomainNet", ["aircraft_carrier", "t-shirt", "teddy-bear"], "plain")
    ['aircraft carrier', 't-shirt', 'teddy-bear']
    """
    renamed = DATA_SETS[data_set].clip_names if style == "clip" and data_set in DATA_SETS else {}
    return [renamed.get(name, name.replace("_", " ")) for name in class_names]
