"""How the images of one domain are divided into roles; the parts of a split, written down, and their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedvlp.core.roles import ROLES, ImageRole
from fedvlp.core.state import Client
from fedvlp.data.files.images import Images, Indices
from fedvlp.utils.errors import check_range
from fedvlp.utils.ranges import FractionBelowOne, OpenFraction, PositiveInt, Seed


@dataclass(frozen=True)
class OfficialSplit:
    """A split that came with the images.

    Attributes:
        title: its parts, such as "train/crossval".
        roles: positions by role, ascending, for each domain; ``held_out`` where not all images test if it is held out.
    """

    title: str
    roles: Mapping[str, Mapping[ImageRole, Indices]]

    def has(self, role: ImageRole) -> bool:
        """Whether it names the images of a role."""
        return any(role in of_domain for of_domain in self.roles.values())


@dataclass(frozen=True)
class SplitRule:
    """How the images of each source domain are divided into roles; its fields are options of FederatedDataModule.

    A domain's split depends on no other domain.
    """

    validation_fraction: OpenFraction = 0.2
    test_fraction: FractionBelowOne = 0.0
    shots: PositiveInt | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_range("validation_fraction", self.validation_fraction, OpenFraction)
        check_range("test_fraction", self.test_fraction, FractionBelowOne)
        check_range("shots", self.shots, PositiveInt)
        check_range("split_seed", self.seed, Seed)

    def divide(
        self, labels: Indices, domain: str, official: Mapping[ImageRole, Indices] | None = None
    ) -> dict[ImageRole, Indices]:
        """Returns the positions of a domain's images by role, each ascending; with ``shots`` some have none.

        Roles that an official split does not name are drawn from its training images.
        """
        roles: dict[ImageRole, Indices] = {"train": np.arange(len(labels)), "test": np.empty(0, np.int64)}
        roles |= official or {}
        train = roles["train"]
        # Each draw has a generator of its own name, or a seed that is unlucky for one would be for all.
        draws: list[tuple[ImageRole, float, str]] = [
            ("test", self.test_fraction, f"test/{domain}"),
            ("validation", self.validation_fraction, domain),
        ]
        for role, fraction, name in draws:
            if fraction > 0 and role not in (official or {}):
                stay, drawn = stratified_split(labels[train], fraction, generator_for(self.seed, name))
                roles[role] = train[drawn]
                train = train[stay]
        if self.shots is not None:
            # Drawn last, so that validation and test images are the same for any number of shots.
            train = train[few_shot(labels[train], self.shots, generator_for(self.seed, f"shots/{domain}"))]
        return {"train": train, "validation": roles["validation"], "test": roles["test"]}


def generator_for(seed: int, name: str) -> np.random.Generator:
    """Returns the generator of a domain or purpose: it depends on the seed and its name, on no other domain."""
    # Not Python's own hash, which differs from process to process.
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


def stratified_split(
    labels: Indices | Sequence[int], fraction: float, generator: np.random.Generator
) -> tuple[Indices, Indices]:
    """Returns the positions of the training and of the validation images, each ascending, drawn class by class.

    Of a class with n images round(fraction n) go to validation, but at least one to each side if n >= 2; the only
    image of a class trains.

    Args:
        labels: class of each image.
        fraction: share of validation images, in (0, 1).
        generator: draws which ones.

    >>> train, validation = stratified_split([0, 0, 0, 0, 1, 1, 2], 0.25, np.random.default_rng(0))
    >>> len(train), np.asarray([0, 0, 0, 0, 1, 1, 2])[validation].tolist()
    (5, [0, 1])
    """
    values = np.asarray(labels)
    chosen: list[Indices] = [np.empty(0, np.int64)]
    for label in np.unique(values):
        members = generator.permutation(np.flatnonzero(values == label))
        # At least one image on each side, except that a single image trains.
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        chosen.append(members[:count])
    validation = np.sort(np.concatenate(chosen))
    train = np.setdiff1d(np.arange(len(values)), validation)
    return train.astype(np.int64), validation.astype(np.int64)


def few_shot(labels: Indices | Sequence[int], shots: int, generator: np.random.Generator) -> Indices:
    """Returns the positions, ascending, of min(shots, available) images of each class.

    With a generator of the same seed, those of fewer shots are among those of more.

    >>> few_shot([0, 1, 0, 1, 0], 1, np.random.default_rng(0)).tolist()
    [3, 4]
    >>> few_shot([0, 1, 0, 1, 0], 2, np.random.default_rng(0)).tolist()
    [0, 1, 3, 4]
    """
    values = np.asarray(labels)
    # The first of a whole permutation, so that fewer shots are among more.
    chosen = [generator.permutation(np.flatnonzero(values == label))[:shots] for label in np.unique(values)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


@dataclass(frozen=True)
class SplitPart:
    """One part of a split: the images that one client trains on, or those of one domain on which accuracy is measured.

    Attributes:
        role: ``train`` images belong to a client; ``validation`` and ``test`` images to a domain that clients have,
            ``held_out`` images to one that none has. Roles with ``new`` are of classes on which no client trains, and
            ``local`` and ``personal`` images belong to a client as ``train`` images do.
        rows_by_domain: positions in each domain, ascending; of one domain unless a client has several.
        clients: who trains on them, or on other images of their domain; none where held out.
        classes: labels that the images are told apart from each other by, ascending, where it is not by all that train.
    """

    role: ImageRole
    rows_by_domain: Mapping[str, Indices]
    clients: tuple[Client, ...] = ()
    classes: tuple[int, ...] = ()

    @property
    def domains(self) -> list[str]:
        """The domains of the images; one unless a client has several."""
        return list(self.rows_by_domain)

    @property
    def is_of_client(self) -> bool:
        """Whether the images belong to one client, and not to a domain."""
        return self.role == "train" or ROLES[self.role].by_client

    @property
    def owner(self) -> str:
        """Name of the client or of the domain to which the images belong."""
        return self.clients[0].name if self.is_of_client else self.domains[0]

    @property
    def name(self) -> str:
        """``<role>/<owner>``."""
        return f"{self.role}/{self.owner}"

    def names_of_classes(self, class_names: Sequence[str]) -> tuple[str, ...]:
        """Returns the names of ``classes``, given those of all classes."""
        return tuple(class_names[label] for label in self.classes)

    def of_classes(self, images: Mapping[str, Images], classes: Sequence[int]) -> SplitPart:
        """Returns the same part without the images of other classes."""
        rows_of_classes: dict[str, Indices] = {}
        for domain, rows in self.rows_by_domain.items():
            rows_of_classes[domain] = rows[np.isin(images[domain].labels[rows], np.asarray(classes))]
        return replace(self, rows_by_domain=rows_of_classes)

    def __len__(self) -> int:
        return sum(len(rows) for rows in self.rows_by_domain.values())


def split_hash(parts: Sequence[SplitPart], images: Mapping[str, Images], class_names: Sequence[str]) -> str:
    """Returns 16 hexadecimal digits that change with any image's role, domain, client, name or class.

    They do not change with the order of parts. A client that is all of a domain is not named, for it says no more; nor
    is a pool of all of them, so that it is the same split as that of one client a domain.
    """
    lines: list[str] = []
    for part in parts:
        clients = part.clients if part.is_of_client else ()
        for domain, rows in part.rows_by_domain.items():
            # A client that is all of its domain adds nothing, and neither does a pool.
            client_names = [client.name for client in clients if client.name != domain and not client.is_pool]
            names, labels = images[domain].names, images[domain].labels
            # No name of a file holds a NUL, so different images can't give the same line.
            for row in rows:
                lines.append("\0".join([part.role, domain, names[row], class_names[labels[row]], *client_names]))
    return hash_lines(lines)


def image_hash(images: Mapping[str, Images], class_names: Sequence[str]) -> str:
    """Returns 16 hexadecimal digits that change with the name or class of any image of any domain.

    Unlike ``split_hash`` they are the same whatever is held out, and however images are divided among clients.
    """
    lines: list[str] = []
    for domain, domain_images in images.items():
        for name, label in zip(domain_images.names, domain_images.labels, strict=True):
            lines.append(f"{domain}\0{name}\0{class_names[label]}")
    return hash_lines(lines)


def hash_lines(lines: Iterable[str]) -> str:
    """Returns 16 hexadecimal digits that do not change with the order of the lines."""
    # File names may hold bytes that are not UTF-8; Python keeps them as surrogates.
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def split_table(parts: Sequence[SplitPart], images: Mapping[str, Images]) -> list[dict[str, Any]]:
    """Returns the names of the images for each role, domain and client, made to be written as JSON."""
    table: list[dict[str, Any]] = []
    for part in parts:
        # Validation and test images of a domain may have several clients, and then are none's own.
        client = part.clients[0].id if len(part.clients) == 1 else None
        for domain, rows in part.rows_by_domain.items():
            names = [images[domain].names[row] for row in rows]
            table.append({"role": part.role, "domain": domain, "client": client, "images": names})
    return table
