"""How the images of one domain are divided into roles: pure functions of labels, names and a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedvlp.core.roles import MeasuredRole
from fedvlp.data.files.images import Indices
from fedvlp.utils.ranges import FractionBelowOne, OpenFraction, PositiveInt, Seed, check_range

Role = Literal["train"] | MeasuredRole


@dataclass(frozen=True)
class OfficialSplit:
    """A split that came with the images.

    Attributes:
        title: its parts, such as "train/crossval".
        roles: positions by role, ascending, for each domain; ``held_out`` where not all images test if it is held out.
    """

    title: str
    roles: Mapping[str, Mapping[Role, Indices]]

    def has(self, role: Role) -> bool:
        """Whether it says which images have this role."""
        return any(role in of_domain for of_domain in self.roles.values())


@dataclass(frozen=True)
class SplitRule:
    """How the images of each source domain are divided into roles.

    Attributes:
        validation_fraction: share of each class that validates, of what is left after testing, in (0, 1).
        test_fraction: share of each class that tests, in [0, 1).
        shots: training images of each class, at most; None takes all.
        seed: of all draws; a domain's split depends on no other domain.
    """

    validation_fraction: OpenFraction = 0.2
    test_fraction: FractionBelowOne = 0.0
    shots: PositiveInt | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        check_range("validation_fraction", self.validation_fraction, OpenFraction)
        check_range("test_fraction", self.test_fraction, FractionBelowOne)
        check_range("shots", self.shots, PositiveInt)
        check_range("split_seed", self.seed, Seed)

    def divide(
        self, labels: Indices, domain: str, official: Mapping[Role, Indices] | None = None
    ) -> dict[Role, Indices]:
        """Returns the positions of a domain's images by role, each ascending; with ``shots`` some have none.

        Roles that an official split does not give are drawn from its training images.
        """
        given = official or {}
        train = given.get("train", np.arange(len(labels)))
        test = given.get("test", np.empty(0, np.int64))
        if self.test_fraction > 0 and "test" not in given:
            train, test = self._draw(labels, train, self.test_fraction, f"test/{domain}")
        if "validation" in given:
            validation = given["validation"]
        else:
            train, validation = self._draw(labels, train, self.validation_fraction, domain)
        if self.shots is not None:
            # Drawn last, so that validation and test images are the same for any number of shots.
            train = train[few_shot(labels[train], self.shots, generator_for(self.seed, f"shots/{domain}"))]
        return {"train": train, "validation": validation, "test": test}

    def _draw(self, labels: Indices, rows: Indices, fraction: float, name: str) -> tuple[Indices, Indices]:
        """Returns the positions that stay, and the share of each class that was drawn."""
        stay, drawn = stratified_split(labels[rows], fraction, generator_for(self.seed, name))
        return rows[stay], rows[drawn]


def generator_for(seed: int, name: str) -> np.random.Generator:
    """Returns the generator of a domain or purpose: it depends on the seed and its name, on no other domain."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


def stratified_split(
    labels: Indices | Sequence[int], fraction: float, generator: np.random.Generator
) -> tuple[Indices, Indices]:
    """Splits positions into training and validation, class by class.

    Of a class with n images round(fraction n) go to validation, but at least one to each side if n >= 2; the only
    image of a class trains.

    Args:
        labels: class of each image.
        fraction: share of validation images, in (0, 1).
        generator: draws which ones.

    Returns:
        Positions of the training and of the validation images, each ascending.

    >>> train, validation = stratified_split([0, 0, 0, 0, 1, 1, 2], 0.25, np.random.default_rng(0))
    >>> len(train), np.asarray([0, 0, 0, 0, 1, 1, 2])[validation].tolist()
    (5, [0, 1])
    """
    values = np.asarray(labels)
    chosen: list[Indices] = []
    for label in np.unique(values):
        members = generator.permutation(np.flatnonzero(values == label))
        # At least one image on each side, except that a single image trains.
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        chosen.append(members[:count])
    validation = np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)
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
    chosen = [generator.permutation(np.flatnonzero(values == label))[:shots] for label in np.unique(values)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)
