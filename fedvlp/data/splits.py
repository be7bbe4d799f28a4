"""Which images train, validate and test: pure functions of labels, names and a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedvlp.core.state import Client
from fedvlp.data.files.images import Images, Indices
from fedvlp.utils.errors import UserError

Role = Literal["train", "validation", "test", "held_out"]
Deal = Callable[[Indices, Indices, np.random.Generator], list[Indices]]


@dataclass(frozen=True)
class Share:
    """The images that play one role: those that one client trains on, or those of one domain that measure.

    Attributes:
        role: ``train`` images belong to a client; ``validation`` and ``test`` images to a domain that clients have,
            ``held_out`` images to one that none has.
        parts: names of domains with positions in each, ascending; one domain unless a client has several.
        clients: who trains on them, or on other images of their domain; none where held out.
    """

    role: Role
    parts: tuple[tuple[str, Indices], ...]
    clients: tuple[Client, ...] = ()

    @property
    def name(self) -> str:
        """The role and whose images they are: ``train/<client>``, or ``validation/<domain>`` and the like."""
        return f"{self.role}/{self.clients[0].name if self.role == 'train' else self.parts[0][0]}"

    def __len__(self) -> int:
        """Counts the images."""
        return sum(len(rows) for _, rows in self.parts)


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

    validation_fraction: float = 0.2
    test_fraction: float = 0.0
    shots: int | None = None
    seed: int = 0

    def divide(
        self, labels: Indices, domain: str, official: Mapping[Role, Indices] | None = None
    ) -> dict[Role, Indices]:
        """Returns the positions of a domain's images by role, each ascending; with ``shots`` some have none.

        Roles that an official split does not give are drawn from its training images.
        """
        given = official or {}
        train, test = given.get("train", np.arange(len(labels))), given.get("test", np.empty(0, np.int64))
        if self.test_fraction > 0 and "test" not in given:
            train, test = self._draw(labels, train, self.test_fraction, f"test/{domain}")
        if "validation" in given:
            validation = given["validation"]
        else:
            train, validation = self._draw(labels, train, self.validation_fraction, domain)
        if self.shots is not None:
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


def deal(
    images: Mapping[str, Images],
    sources: Sequence[str],
    held_out: Sequence[str],
    rule: SplitRule,
    partitioner: Deal,
    official: OfficialSplit | None = None,
) -> list[Share]:
    """Deals all images to roles, and the training images to clients.

    Each domain is divided into roles first, so the images that measure are the same whatever the clients.

    Args:
        images: images by domain.
        sources: source domains, in the order of their positions.
        held_out: domains whose images all test, or those that the official split says.
        rule: divides each source domain.
        partitioner: deals the training images to clients.
        official: roles that came with the images, which the rule then does not draw.

    Returns:
        The clients' training shares in their order, then validation and test shares of the source domains, then the
        held-out domains; an empty share is left out.

    Raises:
        UserError: if a client would have no training image.
    """
    _check_not_empty(images, sources)
    given = official.roles if official else {}
    roles = {domain: rule.divide(images[domain].labels, domain, given.get(domain)) for domain in sources}
    trains = {domain: parts["train"] for domain, parts in roles.items()}
    shares = _training_shares(images, trains, partitioner, generator_for(rule.seed, "clients"))
    owners = {domain: tuple(share.clients[0] for share in shares if domain in dict(share.parts)) for domain in sources}
    measured: tuple[Role, ...] = ("validation", "test")
    shares += [Share(role, ((d, roles[d][role]),), owners[d]) for role in measured for d in sources]
    tests = {d: given.get(d, {}).get("held_out", np.arange(len(images[d]))) for d in held_out}
    shares += [Share("held_out", ((domain, rows),)) for domain, rows in tests.items()]
    return [share for share in shares if len(share)]


def _training_shares(
    images: Mapping[str, Images],
    trains: Mapping[str, Indices],
    partitioner: Deal,
    generator: np.random.Generator,
) -> list[Share]:
    """Returns each client's training images, given those of each source domain."""
    sources = list(trains)
    labels = np.concatenate([images[domain].labels[rows] for domain, rows in trains.items()])
    domains = np.repeat(np.arange(len(sources)), [len(rows) for rows in trains.values()])
    rows = np.concatenate(list(trains.values()))
    groups = partitioner(labels, domains, generator)
    found = [np.unique(domains[group]).tolist() for group in groups]
    shares = []
    for client_id, (group, positions, name) in enumerate(zip(groups, found, _names(found, sources), strict=True)):
        if not len(group):
            raise UserError(f"The client {name!r} has no training image. Make fewer clients, or give more images.")
        domain = positions[0] if len(positions) == 1 else -1
        client = Client(id=client_id, domain=domain, num_examples=len(group), name=name)
        parts = tuple((sources[position], rows[group[domains[group] == position]]) for position in positions)
        shares.append(Share("train", parts, (client,)))
    return shares


def _names(found: Sequence[Sequence[int]], sources: Sequence[str]) -> list[str]:
    """Names clients after their domain, numbered where it has several; just numbered if a client has several domains.

    >>> _names([[0], [1], [1]], ["photo", "sketch"]), _names([[0], [0, 1]], ["photo", "sketch"])
    (['photo', 'sketch 1', 'sketch 2'], ['client 1', 'client 2'])
    """
    if any(len(positions) != 1 for positions in found):
        return [f"client {number}" for number in range(1, len(found) + 1)]
    owners = [positions[0] for positions in found]
    return [
        sources[own] if owners.count(own) == 1 else f"{sources[own]} {owners[: i + 1].count(own)}"
        for i, own in enumerate(owners)
    ]


def _check_not_empty(images: Mapping[str, Images], sources: Sequence[str]) -> None:
    """Raises unless each source domain has an image."""
    for name in sources:
        if not len(images[name]):
            raise UserError(
                f"The client {name!r} has no training image. Add images to that domain, hold it out or remove it."
            )
