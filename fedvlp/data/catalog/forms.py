"""The forms in which users have a data set, as facts: what says which images there are, and what was published of them.

Paths are relative to the folder in which a form lies, with forward slashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SplitName = Literal["train", "validation", "test"]


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
        reader: name of the class.
        folder: what torchvision calls the folder, such as "dtd/dtd".
        holds: what must lie in it.
        splits: the role of each of the class's splits; empty where it has none.
    """

    reader: str
    folder: str
    holds: tuple[str, ...]
    splits: Mapping[str, SplitName] = field(default_factory=dict)


@dataclass(frozen=True)
class ClassFolders:
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
        image: where the image of a line lies: its groups by name in braces, and ``{class_name}``.
        parts: the role of each part that a line may name; of a part that is not here nothing is said.
        header: the first line, where that is none of an image.
    """

    files: Mapping[str, SplitName | None]
    line: str
    image: str
    parts: Mapping[str, SplitName] = field(default_factory=dict)
    header: str = ""


@dataclass(frozen=True)
class PixelBatches:
    """CIFAR's files of pixels and labels, as torchvision leaves them, or the archive that they came in.

    Attributes:
        folder: the folder of the files, also in the archive.
        archive: name of the archive.
        files: the role of each file.
        labels: what the file calls the labels.
        names: the file with the names of the classes, in the order of the labels.
        names_key: what that file calls them.
        md5: the published MD5 of each file.
    """

    folder: str
    archive: str
    files: Mapping[str, SplitName]
    labels: str
    names: str
    names_key: str
    md5: Mapping[str, str]


Part = SplitFile | TorchvisionFolder | ClassFolders | ImageLists | PixelBatches


@dataclass(frozen=True)
class Form:
    """One form in which users have a data set.

    Attributes:
        of: who leaves it so, such as "CoOp".
        layout: what lies in its folder, for people.
        parts: what says which images there are; all that are not optional must be there.
        title: the parts of its split, as results name them, such as "CoOp train/val/test"; empty where it has none.
        domain_counts: images of each domain where that is not the data set's own number.
        split_counts: images of each domain by role.
    """

    of: str
    layout: str
    parts: tuple[Part, ...]
    title: str = ""
    domain_counts: Mapping[str, int] = field(default_factory=dict)
    split_counts: Mapping[str, Mapping[SplitName, int]] = field(default_factory=dict)
