"""Divide a domain's images into roles; the parts of a split, their table and their hash."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvlp.core.roles import ROLES, ImageRole
from fedvlp.core.state import Client
from fedvlp.data.files.images import Images, Indices, Integers
from fedvlp.utils.errors import UserError, check_range
from fedvlp.utils.ranges import FractionBelowOne, OpenFraction, PositiveInt, Seed

Names = NDArray[np.object_]
"""A string for each image."""
GivenNames = Mapping[str, Names] | None
"""A string for each image, by domain, if the data set gives them."""


@dataclass(frozen=True)
class OfficialSplit:
    """A split that was published with the images.

    Attributes:
        title: Names of its parts, such as "train/crossval".
        roles: Positions by role, ascending, for each domain; ``held_out`` if not all images of a held-out domain test.
    """

    title: str
    roles: Mapping[str, Mapping[ImageRole, Indices]]

    def has(self, role: ImageRole) -> bool:
        """Whether the split lists the images of a role."""
        return any(role in positions for positions in self.roles.values())


@dataclass(frozen=True)
class SplitRule:
    """Rule that divides the images of each source domain into roles; its fields are FederatedDataModule options."""

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
        self,
        labels: Indices,
        domain: str,
        official: Mapping[ImageRole, Indices] | None = None,
        groups: Names | None = None,
        role_of_group: dict[str, ImageRole] | None = None,
    ) -> dict[ImageRole, Indices]:
        """Divide a domain's images into roles; return ascending positions. With ``shots``, some images have no role.

        Roles without images in the official split are drawn from its training images.

        Args:
            labels: Class of each image.
            domain: Name of the domain.
            official: Positions by role in the official split.
            groups: The group of each image, "" for none; a group is drawn as a whole.
            role_of_group: Roles of groups in other domains, to which this domain's groups are added.
        """
        roles: dict[ImageRole, Indices] = {"train": np.arange(len(labels)), "test": np.empty(0, np.int64)}
        roles |= official or {}
        train = roles["train"]
        role_of_group = {} if role_of_group is None else role_of_group
        # Each draw has its own generator, so that an unlucky seed for one draw does not affect the others.
        draws: list[tuple[ImageRole, float, str]] = [
            ("test", self.test_fraction, f"test/{domain}"),
            ("validation", self.validation_fraction, domain),
        ]
        for role, fraction, name in draws:
            if fraction > 0 and role not in (official or {}):
                generator = generator_for(self.seed, name)
                single = np.arange(len(train)) if groups is None else np.flatnonzero(groups[train] == "")
                drawn = single[stratified_split(labels[train[single]], fraction, generator)[1]]
                if groups is not None:
                    rest = np.setdiff1d(np.arange(len(train)), single)
                    rows = train[rest]
                    mask = draw_groups(labels[rows], groups[rows], fraction, role, self.seed, role_of_group)
                    drawn = np.sort(np.concatenate([drawn, rest[mask]]))
                roles[role] = train[drawn]
                train = np.delete(train, drawn)
        if groups is not None:
            role_of_group |= dict.fromkeys(groups[train], "train")
        if self.shots is not None:
            # Drawn last, so that validation and test images are the same for any number of shots.
            train = train[few_shot(labels[train], self.shots, generator_for(self.seed, f"shots/{domain}"))]
        return {"train": train, "validation": roles["validation"], "test": roles["test"]}


def generator_for(seed: int, name: str) -> np.random.Generator:
    """Make the generator of a domain or purpose, which depends only on the seed and the name."""
    # Python's own hash differs between processes.
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


def stratified_split(labels: Integers, fraction: float, generator: np.random.Generator) -> tuple[Indices, Indices]:
    """Draw validation images class by class; return the positions of training and validation images, ascending.

    A class of n images gives round(fraction n) for validation, but at least one on each side if n >= 2. If a class has
    only one image, it trains.

    Args:
        labels: Class of each image.
        fraction: Share of validation images, in (0, 1).
        generator: The random generator.

    >>> train, validation = stratified_split([0, 0, 0, 0, 1, 1, 2], 0.25, np.random.default_rng(0))
    >>> len(train), np.asarray([0, 0, 0, 0, 1, 1, 2])[validation].tolist()
    (5, [0, 1])
    """
    values = np.asarray(labels)
    chosen: list[Indices] = [np.empty(0, np.int64)]
    for label in np.unique(values):
        members = generator.permutation(np.flatnonzero(values == label))
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        chosen.append(members[:count])
    validation = np.sort(np.concatenate(chosen))
    train = np.setdiff1d(np.arange(len(values)), validation)
    return train.astype(np.int64), validation.astype(np.int64)


def draw_groups(
    labels: Indices, groups: Names, fraction: float, role: ImageRole, seed: int, role_of_group: dict[str, ImageRole]
) -> NDArray[np.bool_]:
    """Draw groups for a role until about a share of each class is drawn; return a mask of their images.

    Groups come in an order that depends only on their names and the seed. One is drawn if the shares of its classes
    improve, and if another group of each class is left. A class of two groups or more gives at least one.

    Args:
        labels: Class of each image.
        groups: Group of each image.
        fraction: Share of images, in (0, 1).
        role: The role of drawn groups.
        seed: Seed of the order.
        role_of_group: Roles of groups in other domains, which they keep; drawn groups are added.
    """
    names, number = np.unique(groups, return_inverse=True)
    counts = np.zeros((len(names), labels.max(initial=0) + 1))
    np.add.at(counts, (number, labels), 1)
    given = [role_of_group.get(name) for name in names]
    is_drawn = np.asarray([each == role for each in given], bool)
    free = [index for index in range(len(names)) if given[index] is None]
    free.sort(key=lambda index: hashlib.sha256(f"{seed}/{role}/{names[index]}".encode()).digest())
    # Images of each class that are still missing, and groups of each class that are left.
    missing = fraction * counts.sum(0) - counts[is_drawn].sum(0)
    left = (counts[~is_drawn] > 0).sum(0)

    def draw(index: int) -> None:
        is_drawn[index] = True
        missing[:] -= counts[index]
        left[:] -= counts[index] > 0

    for index in free:
        inside = counts[index] > 0
        gain = np.abs(missing) - np.abs(missing - counts[index])
        if gain[inside].sum() > 0 and (left[inside] > 1).all():
            draw(index)
    for label in np.flatnonzero(counts[is_drawn].sum(0) == 0):
        others = [i for i in free if counts[i, label] and not is_drawn[i] and (left[counts[i] > 0] > 1).all()]
        if others:
            draw(min(others, key=lambda index: counts[index].sum()))
    role_of_group |= dict.fromkeys(names[is_drawn], role)
    return is_drawn[number]


def check_groups(parts: Sequence[SplitPart], groups: Mapping[str, Names]) -> None:
    """Raise UserError if images of one group are on two sides of a split: training, validation, or test."""
    sides: dict[str, set[str]] = defaultdict(set)
    for part in parts:
        side = part.role if part.role in ("train", "validation") else "test or held-out"
        for domain, rows in part.rows_by_domain.items():
            for name in set(groups[domain][rows]) - {""}:
                sides[name].add(side)
    leaks = sorted(name for name, found in sides.items() if len(found) > 1)
    if leaks:
        found = " and ".join(sorted(sides[leaks[0]]))
        raise UserError(
            f"Expected each group on one side of the split; {len(leaks)} of {len(sides)} are on two, such as "
            f"{leaks[0]!r} ({found} images). Correct the split, or hold out all domains of these groups together."
        )


def few_shot(labels: Integers, shots: int, generator: np.random.Generator) -> Indices:
    """Draw min(shots, available) images of each class; return their positions, ascending.

    With a generator of the same seed, fewer shots are a subset of more shots.

    >>> few_shot([0, 1, 0, 1, 0], 1, np.random.default_rng(0)).tolist()
    [3, 4]
    >>> few_shot([0, 1, 0, 1, 0], 2, np.random.default_rng(0)).tolist()
    [0, 1, 3, 4]
    """
    values = np.asarray(labels)
    chosen = [generator.permutation(np.flatnonzero(values == label))[:shots] for label in np.unique(values)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


@dataclass(frozen=True)
class SplitPart:
    """One part of a split: the training images of one client, or the measured images of a client or domain.

    Attributes:
        role: ``train``, ``local`` and ``personal`` images belong to a client, ``validation`` and ``test`` images to a
            source domain, ``held_out`` images to a held-out domain. Roles with ``new`` contain new classes.
        rows_by_domain: Positions in each domain, ascending; one domain unless a client has several.
        clients: The clients that train on these or other images of the domain; empty if it is held out.
        classes: Labels of the classifier, ascending; empty for all classes that train.
    """

    role: ImageRole
    rows_by_domain: Mapping[str, Indices]
    clients: tuple[Client, ...] = ()
    classes: tuple[int, ...] = ()

    @property
    def domains(self) -> list[str]:
        """The domains of the images; one domain unless a client has several."""
        return list(self.rows_by_domain)

    @property
    def belongs_to_client(self) -> bool:
        """Whether the images belong to a client rather than a domain."""
        return self.role == "train" or ROLES[self.role].by_client

    @property
    def owner(self) -> str:
        """Name of the client or domain that owns the images."""
        return self.clients[0].name if self.belongs_to_client else self.domains[0]

    @property
    def name(self) -> str:
        """``<role>/<owner>``."""
        return f"{self.role}/{self.owner}"

    def select_classes(self, images: Mapping[str, Images], classes: Sequence[int]) -> SplitPart:
        """Select only the images of some classes."""
        selected: dict[str, Indices] = {}
        for domain, rows in self.rows_by_domain.items():
            selected[domain] = rows[np.isin(images[domain].labels[rows], np.asarray(classes))]
        return replace(self, rows_by_domain=selected)

    def __len__(self) -> int:
        return sum(len(rows) for rows in self.rows_by_domain.values())


def split_hash(parts: Sequence[SplitPart], images: Mapping[str, Images], class_names: Sequence[str]) -> str:
    """Hash the role, domain, client, name and class of every image, independent of the order of parts.

    A client that owns a whole domain is not part of the hash, and neither is a pool, since both have the same split.
    """
    lines: list[str] = []
    for part in parts:
        clients = part.clients if part.belongs_to_client else ()
        for domain, rows in part.rows_by_domain.items():
            client_names = [client.name for client in clients if client.name != domain and not client.is_pool]
            names, labels = images[domain].names, images[domain].labels
            # File names contain no NUL, so different images have different lines.
            for row in rows:
                lines.append("\0".join([part.role, domain, names[row], class_names[labels[row]], *client_names]))
    return hash_lines(lines)


def image_hash(images: Mapping[str, Images], class_names: Sequence[str]) -> str:
    """Hash the domain, name and class of every image, independent of the split."""
    lines: list[str] = []
    for domain, domain_images in images.items():
        for name, label in zip(domain_images.names, domain_images.labels, strict=True):
            lines.append(f"{domain}\0{name}\0{class_names[label]}")
    return hash_lines(lines)


def hash_lines(lines: Iterable[str]) -> str:
    """Hash lines, independent of their order, to 16 hexadecimal digits."""
    # File names may contain bytes that are not UTF-8, which Python represents as surrogates.
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def split_table(parts: Sequence[SplitPart], images: Mapping[str, Images]) -> list[dict[str, Any]]:
    """List the names of the images for each role, domain and client, as values for JSON."""
    table: list[dict[str, Any]] = []
    for part in parts:
        # Validation and test images of a domain with several clients belong to no single client.
        client = part.clients[0].id if len(part.clients) == 1 else None
        for domain, rows in part.rows_by_domain.items():
            names = [images[domain].names[row] for row in rows]
            table.append({"role": part.role, "domain": domain, "client": client, "images": names})
    return table
