"""Which images train, validate and test, and on which client; a split written down, and its digest."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedvlp.core.roles import OF_CLIENTS
from fedvlp.core.state import Client
from fedvlp.data.files.images import Images, Indices
from fedvlp.data.partition import Pooled, apportion
from fedvlp.data.split_rule import OfficialSplit, Role, SplitRule, generator_for
from fedvlp.utils.errors import UserError

MEASURED_ROLES: tuple[Role, ...] = ("validation", "test")
"""Roles, besides training, of the images of source domains."""
PartitionFunction = Callable[[Indices, Indices, np.random.Generator], list[Indices]]
"""What a ``Partitioner`` does: from labels, domains and a generator to the positions of each client's images."""


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

    role: Role
    rows_by_domain: Mapping[str, Indices]
    clients: tuple[Client, ...] = ()
    classes: tuple[int, ...] = ()

    @property
    def domains(self) -> list[str]:
        """The domains of the images; one unless a client has several."""
        return list(self.rows_by_domain)

    @property
    def name(self) -> str:
        """The role and whose images they are: ``train/<client>``, or ``validation/<domain>`` and the like."""
        return f"{self.role}/{self.clients[0].name if self.is_of_client else self.domains[0]}"

    @property
    def is_of_client(self) -> bool:
        """Whether the images are one client's own, and not a domain's."""
        return self.role == "train" or self.role in OF_CLIENTS

    def __len__(self) -> int:
        """Counts the images."""
        return sum(len(rows) for rows in self.rows_by_domain.values())


def make_splits(
    images: Mapping[str, Images],
    sources: Sequence[str],
    held_out: Sequence[str],
    rule: SplitRule,
    partitioner: PartitionFunction,
    official: OfficialSplit | None = None,
    num_base: int | None = None,
) -> list[SplitPart]:
    """Gives every image a role, and every training image a client.

    Each domain is divided into roles first, so the images that measure are the same whatever the clients.

    Args:
        images: images by domain.
        sources: source domains, in the order of their positions.
        held_out: domains whose images all test, or those that the official split says.
        rule: divides each source domain.
        partitioner: divides the training images among clients.
        official: roles that came with the images, which the rule then does not draw.
        num_base: of how many classes, the first ones, images train and validate; of all if None.

    Returns:
        The clients' training parts in their order, then validation and test parts of the source domains, then the
        held-out domains; an empty part is left out.

    Raises:
        UserError: if a client would have no training image.
    """
    _check_not_empty(images, sources)
    given = official.roles if official else {}
    roles = {domain: rule.divide(images[domain].labels, domain, given.get(domain)) for domain in sources}
    if num_base is not None:
        # All classes are divided first, so that the images that test are the same as where all of them train.
        roles = {domain: _of_base_classes(of_domain, images[domain], num_base) for domain, of_domain in roles.items()}
    train_rows = {domain: rows_by_role["train"] for domain, rows_by_role in roles.items()}
    training = _training_parts(images, train_rows, partitioner, generator_for(rule.seed, "clients"))
    parts = list(training)
    for role in MEASURED_ROLES:
        for domain in sources:
            owners = tuple(part.clients[0] for part in training if domain in part.rows_by_domain)
            parts.append(SplitPart(role, {domain: roles[domain][role]}, owners))
    for domain in held_out:
        rows = given.get(domain, {}).get("held_out", np.arange(len(images[domain])))
        parts.append(SplitPart("held_out", {domain: rows}))
    return [part for part in parts if len(part)]


def _of_base_classes(roles: Mapping[Role, Indices], images: Images, num_base: int) -> dict[Role, Indices]:
    """Leaves images of other classes than the first ones out of training and validation."""
    kept = dict(roles)
    for role in ("train", "validation"):
        kept[role] = roles[role][images.labels[roles[role]] < num_base]
    return kept


def _training_parts(
    images: Mapping[str, Images],
    train_rows: Mapping[str, Indices],
    partitioner: PartitionFunction,
    generator: np.random.Generator,
) -> list[SplitPart]:
    """Returns each client's training images, given those of each source domain."""
    sources = list(train_rows)
    # A partitioner sees the training images of all source domains as one list.
    labels = np.concatenate([images[domain].labels[rows] for domain, rows in train_rows.items()])
    positions = np.repeat(np.arange(len(sources)), [len(rows) for rows in train_rows.values()])
    rows = np.concatenate(list(train_rows.values()))
    # Randomness of clients has a generator of its own, so other clients never change which images measure.
    groups = partitioner(labels, positions, generator)
    owned = [np.unique(positions[group]).tolist() for group in groups]
    is_pool = isinstance(partitioner, Pooled)
    names = ["pool"] if is_pool else _client_names(owned, sources)
    parts = []
    for client_id, group in enumerate(groups):
        name = names[client_id]
        if not len(group):
            raise UserError(f"The client {name!r} has no training image. Make fewer clients, or give more images.")
        own = owned[client_id]
        # A client of several domains claims none of them.
        domain = own[0] if len(own) == 1 else -1
        client = Client(id=client_id, domain=domain, num_examples=len(group), name=name, is_pool=is_pool)
        rows_by_domain = {sources[position]: rows[group[positions[group] == position]] for position in own}
        parts.append(SplitPart("train", rows_by_domain, (client,)))
    return parts


def _client_names(owned: Sequence[Sequence[int]], sources: Sequence[str]) -> list[str]:
    """Names clients after their domain, numbered where it has several; just numbered if a client has several domains.

    Args:
        owned: the domains of each client, as positions in ``sources``.
        sources: names of the source domains.

    >>> _client_names([[0], [1], [1]], ["photo", "sketch"]), _client_names([[0], [0, 1]], ["photo", "sketch"])
    (['photo', 'sketch 1', 'sketch 2'], ['client 1', 'client 2'])
    """
    if any(len(positions) != 1 for positions in owned):
        return [f"client {number}" for number in range(1, len(owned) + 1)]
    domains = [sources[positions[0]] for positions in owned]
    names = []
    for i, domain in enumerate(domains):
        number = domains[: i + 1].count(domain)
        names.append(domain if domains.count(domain) == 1 else f"{domain} {number}")
    return names


def _check_not_empty(images: Mapping[str, Images], sources: Sequence[str]) -> None:
    """Raises unless each source domain has an image."""
    for name in sources:
        if not len(images[name]):
            raise UserError(
                f"The client {name!r} has no training image. Add images to that domain, hold it out or remove it."
            )


def client_test_parts(
    images: Mapping[str, Images],
    test_rows: Mapping[str, Indices],
    training: Sequence[SplitPart],
    generator: np.random.Generator,
) -> list[SplitPart]:
    """Deals the test images of each domain and class to the clients that train on it, as their training images are.

    What rounding leaves a client short of in one class, it is given first in the next. Test images of a class on which
    no client trains belong to no client.

    Args:
        images: images by domain.
        test_rows: positions of the test images of each source domain.
        training: the clients' training images.
        generator: draws which image is whose.

    Returns:
        A part of role ``personal`` for each client.

    Raises:
        UserError: if a client gets none.
    """
    owned: list[dict[str, list[Indices]]] = [{} for _ in training]
    due = np.zeros(len(training))  # test images that each client is still to be given, in fractions of one
    for domain, rows in test_rows.items():
        labels = images[domain].labels
        trained = [_class_counts(part, domain, labels) for part in training]
        # Class by class, so that test images are in the proportions of the client's training images.
        for label in np.unique(labels[rows]):
            counts = np.asarray([of_client[int(label)] for of_client in trained])
            if not counts.any():
                continue
            members = generator.permutation(rows[labels[rows] == label])
            due += len(members) * counts / counts.sum()
            wanted = np.where(counts > 0, due.clip(min=0), 0)
            given = apportion(len(members), wanted if wanted.any() else counts)
            due -= given
            for client, piece in enumerate(np.split(members, np.cumsum(given)[:-1])):
                owned[client].setdefault(domain, []).append(piece)
    return [_part(part.clients[0], of_client) for part, of_client in zip(training, owned, strict=True)]


def _class_counts(part: SplitPart, domain: str, labels: Indices) -> Counter[int]:
    """Returns how many training images of each class a client has of a domain."""
    rows = part.rows_by_domain.get(domain)
    return Counter() if rows is None else Counter(labels[rows].tolist())


def _part(client: Client, pieces: Mapping[str, Sequence[Indices]]) -> SplitPart:
    rows_by_domain = {domain: np.sort(np.concatenate(of_domain)) for domain, of_domain in pieces.items()}
    found = {domain: rows for domain, rows in rows_by_domain.items() if len(rows)}
    if not found:
        raise UserError(
            f"The protocol personal tests each client on images of its own, and the client {client.name!r} of "
            f"{client.num_examples} training images got none. Raise data.test_fraction or the least that clients have "
            "(data.partition.min_examples), or make fewer clients."
        )
    return SplitPart("personal", found, (client,))


def split_hash(parts: Sequence[SplitPart], images: Mapping[str, Images], class_names: Sequence[str]) -> str:
    """Returns 16 hexadecimal digits that change with any image's role, domain, client, name or class.

    They do not change with the order of parts. A client that is all of a domain is not named, for it says no more; nor
    is a pool of all of them, which is so the same split, of the same images, as that of a client a domain.
    """
    lines: list[str] = []
    for part in parts:
        for domain, rows in part.rows_by_domain.items():
            clients = part.clients if part.is_of_client else ()
            named = [client.name for client in clients if client.name != domain and not client.is_pool]
            domain_images = images[domain]
            for row in rows:
                lines.append(
                    "\0".join(
                        [part.role, domain, domain_images.names[row], class_names[domain_images.labels[row]], *named]
                    )
                )
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
        client = part.clients[0].id if len(part.clients) == 1 else None
        for domain, rows in part.rows_by_domain.items():
            names = [images[domain].names[row] for row in rows]
            table.append({"role": part.role, "domain": domain, "client": client, "images": names})
    return table
