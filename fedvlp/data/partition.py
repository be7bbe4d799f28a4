"""How the training images of the source domains are divided among clients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedvlp.core.roles import CENTRALISED
from fedvlp.data.files.images import Indices
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import PositiveFloat, PositiveInt


@runtime_checkable
class Partitioner(Protocol):
    """Divides images among clients."""

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Returns the positions of each client's images, ascending; each image goes to exactly one client.

        Args:
            labels: class of each image.
            domains: domain of each image, a position among the source domains.
            generator: the only source of randomness.
        """

    @property
    def description(self) -> str:
        """How results describe it, such as ``30 clients, Dirichlet 0.5 within domains``."""


@dataclass(frozen=True)
class ByDomain(Partitioner):
    """Makes each domain one client, the setting of federated domain generalisation.

    >>> labels, domains = np.asarray([0, 0, 1]), np.asarray([0, 1, 0])
    >>> [rows.tolist() for rows in ByDomain()(labels, domains, np.random.default_rng(0))]
    [[0, 2], [1]]
    """

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Returns the positions of each client's images."""
        return [np.flatnonzero(domains == domain).astype(np.int64) for domain in np.unique(domains)]

    @property
    def description(self) -> str:
        """How results describe it."""
        return "one client a domain"


@dataclass(frozen=True)
class Pooled(Partitioner):
    """Leaves all images in one place: centralised training, the reference that federated methods are measured against.

    Batches are drawn from all source domains together. Nothing is sent, and every result says that it is not federated.

    >>> labels, domains = np.asarray([0, 0, 1]), np.asarray([0, 1, 0])
    >>> [rows.tolist() for rows in Pooled()(labels, domains, np.random.default_rng(0))]
    [[0, 1, 2]]
    """

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Returns the positions of each client's images."""
        return [np.arange(len(labels))]

    @property
    def description(self) -> str:
        """How results describe it."""
        return CENTRALISED


class _Divided(Partitioner):
    """Divides all images, or each domain by itself, so that a client has images of one domain, the first one first.

    A subclass gives the ``_rule`` of its description and divides images in ``_divide``.
    """

    num_clients: int
    min_examples: int = 1
    within_domains: bool = False

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Returns the positions of each client's images."""
        if not self.within_domains:
            return self._divide(labels, self.num_clients, generator)
        domain_indices = np.unique(domains)
        if self.num_clients < len(domain_indices):
            raise UserError(
                f"Expected at least one client for each of the {len(domain_indices)} source domains; got "
                f"num_clients={self.num_clients}. Raise it, or use a partition that ignores domains, such as Dirichlet."
            )
        clients: list[Indices] = []
        # `array_split` gives the first domains one client more where it does not come out even.
        members = np.array_split(np.arange(self.num_clients), len(domain_indices))
        for domain, clients_of_domain in zip(domain_indices, members, strict=True):
            rows = np.flatnonzero(domains == domain)
            groups = self._divide(labels[rows], len(clients_of_domain), generator)
            clients += [rows[positions] for positions in groups]
        return clients

    @abstractmethod
    def _divide(self, labels: Indices, num_clients: int, generator: np.random.Generator) -> list[Indices]:
        """Returns the positions of each client's images, given the labels of those that are divided."""

    def _check_count(self, count: int, least: int, remedy: str) -> None:
        """Raises unless there are enough training images."""
        if count < least:
            where = " in each domain" if self.within_domains else ""
            raise UserError(
                f"Expected at least {least} training images{where} for {self.description}; got {count}. Lower {remedy} "
                "or give more images (shots, validation_fraction, test_fraction)."
            )

    @property
    @abstractmethod
    def _rule(self) -> str:
        """What the description says after the number of clients."""

    @property
    def description(self) -> str:
        """How results describe it."""
        scope = " within domains" if self.within_domains else ""
        least = f", at least {self.min_examples} images each" if self.min_examples > 1 else ""
        return f"{self.num_clients} clients{self._rule}{scope}{least}"


@dataclass(frozen=True)
class Dispersed(_Divided):
    """Disperses each domain over several clients, so that a client has images of one domain.

    Clients are spread over domains as evenly as they can be, the first domains having one more.

    Args:
        num_clients: Clients in all, at least one for each source domain.
        alpha: Concentration of the Dirichlet distribution that draws, for each class of a domain, the shares of that
            domain's clients: near 0 a class goes to one client, far above 1 to all alike. null divides the images of a
            domain at random and evenly.
        min_examples: Training images that each client must get; what is drawn otherwise is drawn again.

    >>> labels, domains = np.zeros(10, np.int64), np.repeat([0, 1, 2], [4, 4, 2])
    >>> clients = Dispersed(num_clients=5)(labels, domains, np.random.default_rng(0))
    >>> [(len(rows), set(domains[rows].tolist())) for rows in clients]
    [(2, {0}), (2, {0}), (2, {1}), (2, {1}), (2, {2})]
    """

    num_clients: PositiveInt
    alpha: PositiveFloat | None = None
    min_examples: PositiveInt = 1
    within_domains = True

    def _divide(self, labels: Indices, num_clients: int, generator: np.random.Generator) -> list[Indices]:
        if self.alpha is not None:
            return _draw_until_enough(self, labels, num_clients, self.alpha, generator)
        self._check_count(len(labels), num_clients * self.min_examples, "num_clients or min_examples")
        return _ascending(np.array_split(generator.permutation(len(labels)), num_clients))

    @property
    def _rule(self) -> str:
        return ", IID" if self.alpha is None else f", Dirichlet {self.alpha:g}"


@dataclass(frozen=True)
class Dirichlet(_Divided):
    """Divides each class by shares drawn from a Dirichlet distribution, whatever the domain (Hsu et al. 2019).

    A client has images of several domains, so methods that tell clients' domains apart refuse it.

    Args:
        num_clients: Clients in all.
        alpha: Concentration: near 0 a class goes to one client, far above 1 to all alike.
        min_examples: Training images that each client must get; what is drawn otherwise is drawn again.

    >>> labels = np.repeat([0, 1], 6)
    >>> clients = Dirichlet(num_clients=3, alpha=1e6)(labels, np.zeros(12, np.int64), np.random.default_rng(0))
    >>> [labels[rows].tolist() for rows in clients]
    [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]
    """

    num_clients: PositiveInt
    alpha: PositiveFloat = 0.5
    min_examples: PositiveInt = 1

    def _divide(self, labels: Indices, num_clients: int, generator: np.random.Generator) -> list[Indices]:
        return _draw_until_enough(self, labels, num_clients, self.alpha, generator)

    @property
    def _rule(self) -> str:
        return f", Dirichlet {self.alpha:g} over classes"


@dataclass(frozen=True)
class Shards(_Divided):
    """Sorts the images by class, cuts them into shards and gives each client some (McMahan et al. 2017, Section 3).

    A client has images of few classes. Methods that tell clients' domains apart need ``within_domains``.

    Args:
        num_clients: Clients in all.
        shards_per_client: Shards that each client gets, at random; their sizes differ by at most one image.
        within_domains: Whether each domain is divided by itself, so that a client has images of one domain.

    >>> labels = np.asarray([1, 0, 1, 0])
    >>> clients = Shards(num_clients=2, shards_per_client=1)(labels, np.zeros(4, np.int64), np.random.default_rng(0))
    >>> sorted(rows.tolist() for rows in clients)
    [[0, 2], [1, 3]]
    """

    num_clients: PositiveInt
    shards_per_client: PositiveInt = 2
    within_domains: bool = False

    def _divide(self, labels: Indices, num_clients: int, generator: np.random.Generator) -> list[Indices]:
        count = num_clients * self.shards_per_client
        self._check_count(len(labels), count, "num_clients or shards_per_client")
        # Shuffled before the stable sort, so that a class is not cut by domain.
        order = generator.permutation(len(labels))
        shards = np.array_split(order[np.argsort(labels[order], kind="stable")], count)
        # Shards go to clients at random, as in the paper, so a client's classes are not neighbours.
        owners = generator.permutation(count).reshape(num_clients, self.shards_per_client)
        return _ascending([np.concatenate([shards[shard] for shard in of_client]) for of_client in owners])

    @property
    def _rule(self) -> str:
        return f", {self.shards_per_client} class shards each"


@dataclass(frozen=True)
class FewClasses(_Divided):
    """Gives each client so many classes, and each class's images evenly and at random to the clients that have it.

    It is the pathological partition of personalised federated learning. Classes have as equally many clients as can be,
    so with as many places as classes no two clients share one, as FedTPG divides the classes of a data set.

    Args:
        num_clients: Clients in all.
        classes_per_client: Classes of each client; its images are of fewer if a class has fewer images than clients.
        within_domains: Whether each domain is divided by itself, so that a client has images of one domain.

    >>> labels = np.repeat([0, 1, 2, 3], 3)
    >>> clients = FewClasses(num_clients=2)(labels, np.zeros(12, np.int64), np.random.default_rng(0))
    >>> [np.bincount(labels[rows], minlength=4).tolist() for rows in clients]
    [[0, 0, 3, 3], [3, 3, 0, 0]]
    """

    num_clients: PositiveInt
    classes_per_client: PositiveInt = 2
    within_domains: bool = False

    def _divide(self, labels: Indices, num_clients: int, generator: np.random.Generator) -> list[Indices]:
        pieces: list[list[Indices]] = [[] for _ in range(num_clients)]
        # Who has which class is drawn before any image, so it does not depend on the numbers of images.
        for label, clients in self._owners(np.unique(labels), num_clients, generator).items():
            rows = generator.permutation(np.flatnonzero(labels == label))
            for client, piece in zip(clients, np.array_split(rows, len(clients)), strict=True):
                pieces[client].append(piece)
        return _ascending([np.concatenate(of_client) for of_client in pieces])

    def _owners(self, classes: Indices, num_clients: int, generator: np.random.Generator) -> dict[int, list[int]]:
        """The clients of each class: each client takes the classes that fewest have, at random among equals."""
        each = self.classes_per_client
        if each > len(classes):
            raise UserError(f"Expected classes_per_client of at most {len(classes)}, as there are classes; got {each}.")
        # Images of a class that no client has would silently train nothing.
        if num_clients * each < len(classes):
            raise UserError(
                f"{num_clients} clients of {each} classes each leave some of the {len(classes)} classes to no client. "
                "Raise num_clients or classes_per_client."
            )
        owners: dict[int, list[int]] = {int(label): [] for label in generator.permutation(classes)}
        for client in range(num_clients):
            # Sorting is stable, so among classes with equally many clients the random order decides.
            order = generator.permutation(classes).tolist()
            for label in sorted(order, key=lambda label: len(owners[label]))[:each]:
                owners[label].append(client)
        return owners

    @property
    def _rule(self) -> str:
        return f", {self.classes_per_client} classes each"


@dataclass(frozen=True)
class QuantitySkew(_Divided):
    """Divides images at random among clients that differ in how many they have and in nothing else.

    Args:
        num_clients: Clients in all.
        law: How the sizes grow from the first client to the last: by one share from each to the next (linear), by a
            factor (exponential), or by shares drawn from a Dirichlet distribution, in any order (dirichlet).
        ratio: Factor from each client to the next, for the exponential law.
        alpha: Concentration of the Dirichlet distribution: near 0 a client has nearly all, far above 1 all have alike.
        min_examples: Training images that each client gets before the others are divided by the law.
        within_domains: Whether each domain is divided by itself, so that a client has images of one domain.

    >>> labels = np.zeros(12, np.int64)
    >>> [len(rows) for rows in QuantitySkew(num_clients=3)(labels, labels, np.random.default_rng(0))]
    [2, 4, 6]
    """

    num_clients: PositiveInt
    law: Literal["linear", "exponential", "dirichlet"] = "linear"
    ratio: PositiveFloat = 2.0
    alpha: PositiveFloat = 0.5
    min_examples: PositiveInt = 1
    within_domains: bool = False

    def _divide(self, labels: Indices, num_clients: int, generator: np.random.Generator) -> list[Indices]:
        self._check_count(len(labels), num_clients * self.min_examples, "num_clients or min_examples")
        shares = np.arange(1, num_clients + 1, dtype=np.float64)
        if self.law == "exponential":
            # The largest share is 1, so that none is infinite.
            growth = (shares - 1) * np.log(self.ratio)
            shares = np.exp(growth - growth.max())
        elif self.law == "dirichlet":
            shares = generator.dirichlet(np.full(num_clients, self.alpha))
        sizes = np.maximum(apportion(len(labels), shares), self.min_examples)
        # What was given to the poor is taken from the rich, one image at a time.
        while sizes.sum() > len(labels):
            sizes[sizes.argmax()] -= 1
        order = generator.permutation(len(labels))
        return _ascending(np.split(order, np.cumsum(sizes)[:-1]))

    @property
    def _rule(self) -> str:
        options = {"linear": "linear", "exponential": f"exponential {self.ratio:g}"}
        return f" of {options.get(self.law, f'Dirichlet {self.alpha:g}')} sizes"


def _by_dirichlet(labels: Indices, count: int, alpha: float, generator: np.random.Generator) -> list[Indices]:
    pieces: list[list[Indices]] = [[np.empty(0, np.int64)] for _ in range(count)]
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        proportions = generator.dirichlet(np.full(count, alpha))
        cuts = np.rint(np.cumsum(proportions)[:-1] * len(rows)).astype(np.int64)
        # Rounding favours places in the middle, so each class gives its clients other places.
        order = generator.permutation(count)
        for client, piece in zip(order, np.split(rows, cuts), strict=True):
            pieces[client].append(piece)
    return _ascending([np.concatenate(of_client) for of_client in pieces])


def _ascending(clients: Sequence[Indices]) -> list[Indices]:
    return [np.sort(positions).astype(np.int64) for positions in clients]


def _draw_until_enough(
    partition: _Divided, labels: Indices, num_clients: int, alpha: float, generator: np.random.Generator
) -> list[Indices]:
    """The first of a hundred draws in which each client has enough images; an error if none has."""
    most = 0
    for _ in range(100):
        clients = _by_dirichlet(labels, num_clients, alpha, generator)
        fewest = min(len(positions) for positions in clients)
        if fewest >= partition.min_examples:
            return clients
        most = max(most, fewest)
    # A skewed draw may never suffice: better an error than clients that are left with nothing.
    raise UserError(
        f"{partition.description}: could not give each of {num_clients} clients {partition.min_examples} of "
        f"{len(labels)} training images in 100 draws; the best gave the poorest client {most}. Lower num_clients or "
        "min_examples, raise alpha, or give more images (shots, validation_fraction, test_fraction)."
    )


def apportion(total: int, shares: Sequence[float] | NDArray[np.float64]) -> Indices:
    """Returns whole numbers that add up to a total and are in proportion to shares, by the largest remainders.

    Of equal remainders the first counts.

    Args:
        total: what they add up to, at least 0.
        shares: at least 0, not all 0.

    >>> apportion(10, [1.0, 2.0, 3.0]).tolist(), apportion(2, [0.5, 0.5, 0.5]).tolist()
    ([2, 3, 5], [1, 1, 0])
    """
    weights = np.asarray(shares, np.float64)
    # Rounded, so that ties are ties on every machine, whatever its last bit.
    exact = np.round(total * weights / weights.sum(), 9)
    counts: Indices = np.floor(exact).astype(np.int64)
    # A stable sort gives what is left to the first of equal remainders.
    largest_first = np.argsort(np.round(counts - exact, 9), kind="stable")
    counts[largest_first[: total - counts.sum()]] += 1
    return counts
