"""Facts about published data sets, and their layouts on users' disks.

The file ``data_sets/NAME.toml`` describes a data set with the attributes of :class:`Description` as keys, and the table
``classes/NAME.csv`` lists its classes. Paths are relative to the layout's folder, with forward slashes.
"""

import csv
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
# The order of `fedvlp data list`.
FILES = (
    "pacs", "office_home", "vlcs", "domain_net", "terra_incognita", "domain_net_10", "domain_net_126", "fed_isic2019",
    "camelyon17", "office31", "image_clef_da", "imagenet", "caltech101", "oxford_pets", "stanford_cars", "flowers102",
    "food101", "fgvc_aircraft", "sun397", "dtd", "eurosat", "ucf101", "cifar10", "cifar100", "tiny_imagenet",
    "voc2007", "coco2014", "chestxray14", "chexpert",
)  # fmt: skip
SplitName = Literal["train", "validation", "test"]
ClassNameStyle = Literal["clip", "plain"]
PART_ROLES: Mapping[str, SplitName] = {"train": "train", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class Folders:
    """A folder for each class, with images at any depth.

    Attributes:
        folder: The folder of the class folders; if empty, each domain has a folder of class folders.
        domain: Domain of its images; empty if the data set has one domain.
        role: Role of its images; None if unknown.
        is_optional: Whether it may be missing.
        ignored: Folders that are not classes.
    """

    folder: str = ""
    domain: str = ""
    role: SplitName | None = None
    is_optional: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageLists:
    """Files that list images, each with its class or its labels.

    Attributes:
        files: The files, with the role of their images; None if entries or ``lists`` name the roles, or if they are
            unknown. With several labels, the names of files may be patterns.
        image: Path of an entry's image, with the groups and ``class_name`` in braces; empty if images have several
            labels. They are then at any depth below the layout's folder.
        line: Regular expression of a whole line, if files have a line for each image. Its group ``class`` is the class,
            ``domain`` is the domain if there are several, and ``part`` is one of ``parts``.
        format: Otherwise, one of ``FORMATS`` in ``fedvlp/data/benchmarks/layouts.py``. CoOp's entries have the groups
            image, class and part.
        parts: The role of each part that an entry may name; images of other parts have no role.
        header: The first line, unless it describes an image.
        lists: Text files with the names of all images of a role.
    """

    files: Mapping[str, SplitName | None]
    image: str = ""
    line: str = ""
    format: str = ""
    parts: Mapping[str, SplitName] = field(default_factory=lambda: PART_ROLES)
    header: str = ""
    lists: Mapping[str, SplitName] = field(default_factory=dict)


@dataclass(frozen=True)
class TorchvisionFolder:
    """A folder that a class of ``torchvision.datasets`` reads.

    Attributes:
        class_name: Name of the class.
        folder: The folder's path in torchvision, such as "dtd/dtd".
        holds: Files and folders that identify it.
        splits: The splits of the class, of ``PART_ROLES``; empty if it has none.
        has_pixels: Whether each file contains the pixels of many images, as CIFAR's.
    """

    class_name: str
    folder: str
    holds: tuple[str, ...]
    splits: tuple[str, ...] = ()
    has_pixels: bool = False


@dataclass(frozen=True)
class Layout:
    """One layout of a data set on disk.

    Attributes:
        of: Projects that use it, such as "CoOp".
        pattern: A readable description of its folders and files.
        parts: The sources of its images; all that are not optional must exist.
        title: The parts of its split in results, such as "CoOp train/val/test"; empty if there is no split.
        split_folders: Folders that may exist between domain and class, with the role of their images.
        lists: For each style of lists that may exist, the role of ``<domain>_<ending>.txt`` by ending.
        list_folders: Folders that may contain lists, relative to the domains' folder, its parent or the root.
        duplicates_list: Name of a list of duplicates to skip; empty if the data set has none.
        domain_counts: Number of images of each domain, if it differs from the data set's.
        split_counts: Number of images of each domain by role.
    """

    of: str
    pattern: str
    parts: tuple[Folders | ImageLists | TorchvisionFolder, ...]
    title: str = ""
    split_folders: Mapping[str, SplitName | None] = field(default_factory=dict)
    lists: tuple[Mapping[str, SplitName], ...] = ()
    list_folders: tuple[str, ...] = ()
    duplicates_list: str = ""
    domain_counts: Mapping[str, int] = field(default_factory=dict)
    split_counts: Mapping[str, Mapping[SplitName, int]] = field(default_factory=dict)

    @property
    def is_tree(self) -> bool:
        """Whether each domain has a folder of class folders."""
        return any(isinstance(part, Folders) and not part.folder for part in self.parts)


@dataclass(frozen=True)
class HubSource:
    """A copy of a data set on the Hugging Face hub: ``data/*.parquet`` with image, domain and label in each row.

    Attributes:
        repository: The data set's repository, ``owner/name``.
        download_bytes: Approximate size of the download.
        revision: The commit; None takes the newest.
        domain_column: The column with an image's domain.
        has_official_split: Whether the files ``train-*`` and ``test-*`` are the parts of the official split.
    """

    repository: str
    download_bytes: int
    revision: str | None = None
    domain_column: str = "domain"
    has_official_split: bool = False


@dataclass(frozen=True)
class TorchvisionSource:
    """A download by the class ``reader`` of ``torchvision.datasets``, of about ``download_bytes``."""

    reader: str
    download_bytes: int


KINDS: tuple[type[Any], ...] = (Folders, ImageLists, TorchvisionFolder, HubSource, TorchvisionSource)


@dataclass(frozen=True)
class Description:
    """The facts of one data set: its names, its numbers of images, and its layouts on disk.

    Attributes:
        name: Name of the data set and of its data module.
        summary: One or two sentences for the help of its data module.
        config: Name of its config.
        source: The project that publishes it.
        class_names: The classes or labels, sorted, or in the order of CoOp's or the publisher's labels.
        counts: Published number of images of each class or label, by domain.
        domain_counts: Number of images of each domain; None if it is not published.
        spellings: Other names of domains on disk. Case, spaces, ``_`` and ``-`` do not matter.
        class_spellings: Other names of classes on disk.
        layouts: Its layouts. If a folder has several, the first one is read.
        gaps: The classes that a domain may lack, by domain.
        has_numbered_classes: Whether class folders may be named by their number, from 0.
        tests_on_list: Whether only the official test images of a held-out domain test.
        test_domains: Domains without training images, so either held out or not used.
        known_bad: Names of published images that can't be read.
        is_subset: Whether it is part of a larger data set, so folders may have other classes.
        has_copies: Whether it was published with copies of images, possibly on both sides of a split.
        licence: The owners' terms, as far as known.
        clip_names: Class names that are more frequent in CLIP's training data than the folders' names.
        download_source: The source for ``fedvlp data download``; None if there is none.
    """

    name: str
    config: str
    source: str
    class_names: tuple[str, ...]
    domain_counts: Mapping[str, int | None]
    layouts: tuple[Layout, ...]
    summary: str = ""
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)
    class_spellings: Mapping[str, str] = field(default_factory=dict)
    gaps: Mapping[str, frozenset[str]] = field(default_factory=dict)
    has_numbered_classes: bool = False
    tests_on_list: bool = False
    test_domains: tuple[str, ...] = ()
    known_bad: tuple[str, ...] = ()
    is_subset: bool = False
    has_copies: bool = False
    licence: str = ""
    clip_names: Mapping[str, str] = field(default_factory=dict)
    download_source: HubSource | TorchvisionSource | None = None

    @property
    def short_name(self) -> str:
        """The name on the command line, such as ``office_home``."""
        return self.config.removeprefix("data/")

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains, sorted."""
        return tuple(sorted(self.domain_counts))

    @property
    def several_labels(self) -> bool:
        """Whether an image may have several labels, or none."""
        return any(isinstance(part, ImageLists) and not part.image for layout in self.layouts for part in layout.parts)

    @property
    def images(self) -> int | None:
        """Number of images in all domains; None if some numbers are not published."""
        return None if None in self.domain_counts.values() else sum(filter(None, self.domain_counts.values()))

    @property
    def official_parts(self) -> str:
        """The parts of the official split in the most common layout, such as "train/crossval"; empty if none."""
        return next((layout.title for layout in self.layouts if layout.title), "")

    def counts_in(self, layout: Layout | None) -> Mapping[str, int | None]:
        """Look up the published number of images of each domain in a layout."""
        return {**self.domain_counts, **(layout.domain_counts if layout else {})}

    def match_domain(self, folder: str) -> str | None:
        """Look up the domain of a name on disk, or None."""
        return self._domains.get(normalise_name(folder))

    def match_class(self, folder: str) -> str | None:
        """Look up the class of a name on disk, or None."""
        if self.has_numbered_classes and folder.isdecimal():
            return dict(enumerate(self.class_names)).get(int(folder))
        return self._classes.get(normalise_name(folder))

    @cached_property
    def _domains(self) -> dict[str, str]:
        return _by_spelling(self.domain_counts, self.spellings)

    @cached_property
    def _classes(self) -> dict[str, str]:
        return _by_spelling(self.class_names, self.class_spellings)


def _by_spelling(names: Collection[str], spellings: Mapping[str, str]) -> dict[str, str]:
    return {normalise_name(spelling): name for spelling, name in (*zip(names, names, strict=True), *spellings.items())}


def normalise_name(name: str) -> str:
    """Reduce a name to letters and digits in lower case, so that its spellings match.

    >>> normalise_name("Real World"), normalise_name("Real_World"), normalise_name("t-shirt")
    ('realworld', 'realworld', 'tshirt')
    """
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def read_description(file: str) -> Description:
    """Read a data set's facts from its TOML file and its table of classes."""
    content = tomllib.loads((FOLDER / "data_sets" / f"{file}.toml").read_text(encoding="utf-8"))
    facts: dict[str, Any] = _convert(content)
    facts["layouts"] = tuple(Layout(**layout) for layout in facts["layouts"])
    with (FOLDER / "classes" / f"{file}.csv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    class_names = tuple(row["class"] for row in rows)
    # In the table, the columns `also` and `of` have entries separated by a bar. Other columns are domains.
    spellings = {spelling: row["class"] for row in rows for spelling in _entries(row, "also")}
    gaps = {domain: class_names if names == ("*",) else names for domain, names in facts.get("gaps", {}).items()}
    for domain in {domain for row in rows for domain in _entries(row, "of")}:
        gaps[domain] = [row["class"] for row in rows if domain not in _entries(row, "of")]
    facts["gaps"] = {domain: frozenset(names) for domain, names in gaps.items()}
    counts = {}
    for domain in [column for column in rows[0] if column not in ("class", "also", "of")]:
        # The column of a domain is empty if its counts are not published.
        if class_counts := {row["class"]: int(row[domain]) for row in rows if row[domain]}:
            counts[domain] = class_counts
    facts.setdefault("domain_counts", {domain: sum(numbers.values()) for domain, numbers in counts.items()})
    facts |= {"class_names": class_names, "class_spellings": spellings, "counts": counts}
    return Description(config=f"data/{file}", **facts)


def _entries(row: Mapping[str, str], column: str) -> list[str]:
    return [entry for entry in row.get(column, "").split("|") if entry]


def _convert(value: Any) -> Any:
    """Convert TOML lists to tuples, empty strings to None, and tables with a ``kind`` to objects."""
    if isinstance(value, list):
        return tuple(map(_convert, value))
    if not isinstance(value, dict):
        return None if value == "" else value
    fields = {key: _convert(entry) for key, entry in value.items()}
    kinds = {kind.__name__: kind for kind in KINDS}
    return kinds[fields.pop("kind")](**fields) if "kind" in fields else fields


DESCRIPTIONS: tuple[Description, ...] = tuple(map(read_description, FILES))
DATA_SETS: dict[str, Description] = {description.name: description for description in DESCRIPTIONS}
"""By name."""


def prompt_names(data_set: str, class_names: Sequence[str], style: ClassNameStyle) -> list[str]:
    """Convert the names of a data set's class folders to names for prompts, without ``_``.

    Args:
        data_set: Name of the data set.
        class_names: Names of its class folders.
        style: "plain" replaces ``_`` by a space; "clip" also uses words that are more frequent in CLIP's training data.

    >>> prompt_names("OfficeHome", ["Alarm_Clock", "TV"], "clip")
    ['Alarm Clock', 'television']
    >>> prompt_names("DomainNet", ["aircraft_carrier", "t-shirt", "teddy-bear"], "plain")
    ['aircraft carrier', 't-shirt', 'teddy-bear']
    """
    renamed = DATA_SETS[data_set].clip_names if style == "clip" and data_set in DATA_SETS else {}
    return [renamed.get(name, name.replace("_", " ")) for name in class_names]
