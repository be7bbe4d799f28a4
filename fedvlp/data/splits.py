"""Which images train, validate and test: pure functions of labels, names and a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedvlp.data.images import Images, Indices
from fedvlp.data.partition import Partitioner, by_domain
from fedvlp.errors import UserError
from fedvlp.state import Client

Role = Literal["train", "validation", "held_out"]


@dataclass(frozen=True)
class Share:
    """The images of one domain that play one role.

    Attributes:
        role: ``train`` and ``validation`` belong to a client, ``held_out`` to nobody.
        domain: name of the domain.
        client: whose images they are; None where held out.
        rows: positions in the domain, ascending.
    """

    role: Role
    domain: str
    client: Client | None
    rows: Indices

    @property
    def name(self) -> str:
        """The role and whose images they are: ``validation/<client>`` or ``held_out/<domain>``."""
        return f"{self.role}/{self.domain if self.client is None else self.client.name}"


def generator_for(seed: int, name: str) -> np.random.Generator:
    """Returns the generator of a client or domain: it depends on the seed and its name, on no other domain."""
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


def deal(
    images: Mapping[str, Images],
    sources: Sequence[str],
    held_out: Sequence[str],
    fraction: float,
    seed: int,
    partitioner: Partitioner = by_domain,
) -> list[Share]:
    """Deals all images to roles: the clients' training and validation splits, and the held-out domains.

    Args:
        images: images by domain.
        sources: source domains, in the order of their positions.
        held_out: domains whose images all test.
        fraction: share of each class that validates, in (0, 1).
        seed: of the split; a client's split depends on no other client's images.
        partitioner: deals the source images to clients.

    Returns:
        Training shares in the order of clients, then the validation shares, then the held-out domains; a validation
        share is left out where it would be empty.

    Raises:
        UserError: if a client would have no training image.
    """
    train, validation = [], []
    for client_id, (name, position, rows) in enumerate(_members(images, sources, seed, partitioner)):
        domain = sources[position]
        chosen, rest = stratified_split(images[domain].labels[rows], fraction, generator_for(seed, name))
        client = Client(id=client_id, domain=position, num_examples=len(chosen), name=name)
        train.append(Share("train", domain, client, rows[chosen]))
        validation.append(Share("validation", domain, client, rows[rest]))
    tests = [Share("held_out", domain, None, np.arange(len(images[domain]))) for domain in held_out]
    return [*train, *(share for share in (*validation, *tests) if len(share.rows))]


def _members(
    images: Mapping[str, Images], sources: Sequence[str], seed: int, partitioner: Partitioner
) -> list[tuple[str, int, Indices]]:
    """Returns each client's name, the position of its domain and its rows of that domain."""
    labels = np.concatenate([images[domain].labels for domain in sources])
    domains = np.repeat(np.arange(len(sources)), [len(images[domain]) for domain in sources])
    _check_not_empty(domains, sources)
    groups = partitioner(labels, domains, generator_for(seed, "clients"))
    first = np.searchsorted(domains, np.arange(len(sources)))
    members: list[tuple[str, int, Indices]] = []
    for group in groups:
        positions = np.unique(domains[group])
        if len(positions) != 1:
            raise UserError(f"Expected each client to have images of one domain; one has images of {len(positions)}.")
        position = int(positions[0])
        siblings = sum(other == position for _, other, _ in members)
        is_alone = sum(position in domains[other] for other in groups) == 1
        name = sources[position] if is_alone else f"{sources[position]} {siblings + 1}"
        members.append((name, position, group - first[position]))
    return members


def _check_not_empty(domains: Indices, sources: Sequence[str]) -> None:
    """Raises unless each source domain has an image."""
    for position, name in enumerate(sources):
        if position not in domains:
            raise UserError(
                f"The client {name!r} has no training image. Add images to that domain, hold it out or remove it."
            )


def split_hash(shares: Sequence[Share], images: Mapping[str, Images], class_names: Sequence[str]) -> str:
    """Returns 16 hexadecimal digits that change with any image's role, domain, name or class, not with their order."""
    lines = [
        "\0".join(
            (share.role, share.domain, images[share.domain].names[row], class_names[images[share.domain].labels[row]])
        )
        for share in shares
        for row in share.rows
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def split_table(shares: Sequence[Share], images: Mapping[str, Images]) -> list[dict[str, Any]]:
    """Returns the names of the images for each role and client, made to be written as JSON."""
    return [
        {
            "role": share.role,
            "domain": share.domain,
            "client": None if share.client is None else share.client.id,
            "images": [images[share.domain].names[row] for row in share.rows],
        }
        for share in shares
    ]
