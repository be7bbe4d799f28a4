"""Partitions, which divide the training images of the source domains among clients."""

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
        """Assign each image to at most one client; return each client's positions, ascending.

        Args:
            labels: Class of each image.
            domains: Domain of each image, an index among the source domains.
            generator: The only source of randomness.
        """

    @property
    def description(self) -> str:
        """The description in results, such as ``30 clients, Dirichlet 0.5 within domains``."""


@dataclass(frozen=True)
class ByDomain(Partitioner):
    """Each domain is one client, the setting of federated domain generalisation.

    >>> labels, domains = np.asarray([0, 0, 1]), np.asarray([0, 1, 0])
    >>> [rows.tolist() for rows in ByDomain()(labels, domains, np.random.default_rng(0))]
    [[0, 2], [1]]
    """

    description = "one client per domain"

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Assign each domain's images to its client."""
        return [np.flatnonzero(domains == domain).astype(np.int64) for domain in np.unique(domains)]


@dataclass(frozen=True)
class Pooled(Partitioner):
    """Centralised training on all images, the reference for federated methods.

    Batches are drawn from all source domains together. Nothing is sent, and results are marked as not federated.

    >>> labels, domains = np.asarray([0, 0, 1]), np.asarray([0, 1, 0])
    >>> [rows.tolist() for rows in Pooled()(labels, domains, np.random.default_rng(0))]
    [[0, 1, 2]]
    """

    description = CENTRALISED

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Assign all images to the pool."""
        return [np.arange(len(labels))]


class GivenClients(Partitioner):
    """Each image belongs to the client that the data set names, such as in the column ``client`` of a table."""

    description = "the data set's clients"

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Raise UserError, since the data set names no clients."""
        raise UserError("Expected images with the names of their clients; there are none. Choose data.partition.")


class _Divided(Partitioner):
    """Base of partitions that divide all images together, or each domain separately among its own clients."""

    num_clients: int
    min_examples: int = 1
    within_domains: bool = False

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        if not self.within_domains:
            return self._divide(labels, self.num_clients, generator)
        domain_indices = np.unique(domains)
        if self.num_clients < len(domain_indices):
            raise UserError(
                f"Expected at least one client for each of the {len(domain_indices)} source domains; got "
                f"num_clients={self.num_clients}. Raise it, or use a partition that ignores domains, such as Dirichlet."
            )
        clients: list[Indices] = []
        # If the division is uneven, `array_split` gives the first domains one more client.
        members = np.array_split(np.arange(self.num_clients), len(domain_indices))
        for domain, clients_of_domain in zip(domain_indices, members, strict=True):
            rows = np.flatnonzero(domains == domain)
            groups = self._divide(labels[rows], len(clients_of_domain), generator)
            clients += [rows[positions] for positions in groups]
        return clients

    @abstractmethod
    def _divide(self, labels: Indices, num_clients: int, generator: np.random.Generator) -> list[Indices]:
        """Divide images with these labels."""

    def _check_count(self, count: int, least: int, remedy: str) -> None:
        if count < least:
            scope = " in each domain" if self.within_domains else ""
            raise UserError(
                f"Expected at least {least} training images{scope} for {self.description}; got {count}. Lower {remedy} "
                "or use more images (shots, validation_fraction, test_fraction)."
            )

    def _divide_by_dirichlet(
        self, labels: Indices, num_clients: int, alpha: float, generator: np.random.Generator
    ) -> list[Indices]:
        best = 0
        for _ in range(100):
            pieces: list[list[Indices]] = [[] for _ in range(num_clients)]
            for label in np.unique(labels):
                rows = generator.permutation(np.flatnonzero(labels == label))
                proportions = generator.dirichlet(np.full(num_clients, alpha))
                cuts = np.rint(np.cumsum(proportions)[:-1] * len(rows)).astype(np.int64)
                # Rounding favours positions in the middle, so each class orders the clients differently.
                order = generator.permutation(num_clients)
                for client, piece in zip(order, np.split(rows, cuts), strict=True):
                    pieces[client].append(piece)
            clients = join_pieces(pieces)
            fewest = min(len(positions) for positions in clients)
            if fewest >= self.min_examples:
                return clients
            best = max(best, fewest)
        raise UserError(
            f"{self.description}: no draw out of 100 gave each of {num_clients} clients {self.min_examples} of "
            f"{len(labels)} training images; in the best draw, the smallest client got {best}. Lower num_clients or "
            "min_examples, raise alpha, or use more images (shots, validation_fraction, test_fraction)."
        )

    @property
    @abstractmethod
    def _rule(self) -> str:
        """The part of the description after the number of clients."""

    @property
    def description(self) -> str:
        scope = " within domains" if self.within_domains else ""
        least = f", at least {self.min_examples} images each" if self.min_examples > 1 else ""
        return f"{self.num_clients} clients{self._rule}{scope}{least}"


@dataclass(frozen=True)
class Dispersed(_Divided):
    """Partition that disperses each domain over several clients, so that a client has images of one domain.

    Domains have equal numbers of clients. If the division is uneven, the first domains have one more.

    Args:
        num_clients: Total number of clients, at least one for each source domain.
        alpha: Concentration of the Dirichlet distribution of a class's shares among the domain's clients. Near 0, a
            class goes to one client; far above 1, all clients get equal shares. null divides the images of a domain
            randomly and evenly.
        min_examples: Minimum training images per client; draws with fewer are repeated.

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
            return self._divide_by_dirichlet(labels, num_clients, self.alpha, generator)
        self._check_count(len(labels), num_clients * self.min_examples, "num_clients or min_examples")
        return join_pieces([[rows] for rows in np.array_split(generator.permutation(len(labels)), num_clients)])

    @property
    def _rule(self) -> str:
        return ", IID" if self.alpha is None else f", Dirichlet {self.alpha:g}"


@dataclass(frozen=True)
class Dirichlet(_Divided):
    """Partition of each class by shares from a Dirichlet distribution, regardless of domains (Hsu et al. 2019).

    A client has images of several domains, so methods that distinguish clients' domains reject this partition.

    Args:
        num_clients: Total number of clients.
        alpha: Concentration. Near 0, a class goes to one client; far above 1, all clients get equal shares.
        min_examples: Minimum training images per client; draws with fewer are repeated.

    >>> labels = np.repeat([0, 1], 6)
    >>> clients = Dirichlet(num_clients=3, alpha=1e6)(labels, np.zeros(12, np.int64), np.random.default_rng(0))
    >>> [labels[rows].tolist() for rows in clients]
    [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]
    """

    num_clients: PositiveInt
    alpha: PositiveFloat = 0.5
    min_examples: PositiveInt = 1

    def _divide(self, labels: Indices, num_clients: int, generator: np.random.Generator) -> list[Indices]:
        return self._divide_by_dirichlet(labels, num_clients, self.alpha, generator)

    @property
    def _rule(self) -> str:
        return f", Dirichlet {self.alpha:g} over classes"


@dataclass(frozen=True)
class Shards(_Divided):
    """Partition that sorts images by class and gives each client some shards (McMahan et al. 2017, Section 3).

    A client has images of few classes. Methods that distinguish clients' domains need ``within_domains``.

    Args:
        num_clients: Total number of clients.
        shards_per_client: Number of random shards per client. Shard sizes differ by at most one image.
        within_domains: Whether each domain is divided separately, so that a client has images of one domain.

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
        # As in the paper, shards go to random clients, so a client's classes are not neighbours.
        owners = generator.permutation(count).reshape(num_clients, self.shards_per_client)
        pieces: list[list[Indices]] = []
        for shards_of_client in owners:
            pieces.append([shards[shard] for shard in shards_of_client])
        return join_pieces(pieces)

    @property
    def _rule(self) -> str:
        return f", {self.shards_per_client} class shards each"


@dataclass(frozen=True)
class FewClasses(_Divided):
    """Partition that gives each client a few classes, and divides each class randomly and evenly among its clients.

    This is the pathological partition of personalised federated learning. Numbers of clients per class differ as little
    as possible, so no two clients share a class if there are enough classes, as in FedTPG.

    Args:
        num_clients: Total number of clients.
        classes_per_client: Classes per client. A client has images of fewer if a class has fewer images than clients.
        within_domains: Whether each domain is divided separately, so that a client has images of one domain.

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
        # The clients of a class are drawn before any image, so they do not depend on the number of images.
        for label, clients in self._owners(np.unique(labels), num_clients, generator).items():
            rows = generator.permutation(np.flatnonzero(labels == label))
            for client, piece in zip(clients, np.array_split(rows, len(clients)), strict=True):
                pieces[client].append(piece)
        return join_pieces(pieces)

    def _owners(self, classes: Indices, num_clients: int, generator: np.random.Generator) -> dict[int, list[int]]:
        """Draw the clients of each class: each client takes the classes with the fewest clients, ties at random."""
        count = self.classes_per_client
        if count > len(classes):
            raise UserError(f"Expected classes_per_client of at most {len(classes)}, all classes; got {count}.")
        # Without this check, images of a class without clients would silently not train.
        if num_clients * count < len(classes):
            raise UserError(
                f"With {num_clients} clients of {count} classes each, some of the {len(classes)} classes have no "
                "client. Raise num_clients or classes_per_client."
            )
        owners: dict[int, list[int]] = {int(label): [] for label in generator.permutation(classes)}
        for client in range(num_clients):
            # Sorting is stable, so the random order decides among classes with equal numbers of clients.
            order = generator.permutation(classes).tolist()
            for label in sorted(order, key=lambda label: len(owners[label]))[:count]:
                owners[label].append(client)
        return owners

    @property
    def _rule(self) -> str:
        return f", {self.classes_per_client} classes each"


@dataclass(frozen=True)
class QuantitySkew(_Divided):
    """Random partition in which clients differ only in their number of images.

    Args:
        num_clients: Total number of clients.
        law: Sizes of the clients in order: growing by one share each (linear), growing by a factor (exponential), or
            random shares from a Dirichlet distribution (dirichlet).
        ratio: Factor from each client to the next, for the exponential law.
        alpha: Concentration of the Dirichlet distribution. Near 0, one client has nearly all images; far above 1, all
            clients have equal numbers.
        min_examples: Minimum training images per client, taken from the largest clients.
        within_domains: Whether each domain is divided separately, so that a client has images of one domain.

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
            # The largest share is 1, so that no share is infinite.
            growth = (shares - 1) * np.log(self.ratio)
            shares = np.exp(growth - growth.max())
        elif self.law == "dirichlet":
            shares = generator.dirichlet(np.full(num_clients, self.alpha))
        sizes = np.maximum(apportion(len(labels), shares), self.min_examples)
        # The largest clients give up images, one at a time, so that all clients reach the minimum.
        while sizes.sum() > len(labels):
            sizes[sizes.argmax()] -= 1
        order = generator.permutation(len(labels))
        return join_pieces([[rows] for rows in np.split(order, np.cumsum(sizes)[:-1])])

    @property
    def _rule(self) -> str:
        options = {"linear": "linear", "exponential": f"exponential {self.ratio:g}"}
        return f" of {options.get(self.law, f'Dirichlet {self.alpha:g}')} sizes"


@dataclass(frozen=True)
class LongTail(Partitioner):
    """Partition of a long tail: each class, in the order of labels, keeps fewer training images than the previous one.

    Of C classes, class c keeps up to n factor^(-c / (C - 1)) images, drawn from all source domains, and at least one; n
    is the size of the largest class (Cui et al., CVPR 2019). The remaining images are not used.

    Args:
        factor: Imbalance factor, the ratio of images of the first and of the last class.
        clients: Partition of the kept images among clients.

    >>> labels = np.repeat([0, 1, 2], 9)
    >>> (rows,) = LongTail(factor=9.0)(labels, np.zeros(27, np.int64), np.random.default_rng(0))
    >>> np.bincount(labels[rows]).tolist()
    [9, 3, 1]
    """

    factor: PositiveFloat = 100.0
    clients: Partitioner = ByDomain()

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Draw the kept images, and divide them among clients."""
        classes, counts = np.unique(labels, return_counts=True)
        # Rounding makes whole numbers independent of the last bit.
        limits = np.round(counts.max() * self.factor ** -np.linspace(0, 1, len(classes)), 9)
        pieces = []
        for label, limit in zip(classes, limits, strict=True):
            pieces.append(generator.permutation(np.flatnonzero(labels == label))[: max(int(limit), 1)])
        (kept,) = join_pieces([pieces])
        return [kept[rows] for rows in self.clients(labels[kept], domains[kept], generator)]

    @property
    def description(self) -> str:
        """The description of the clients, and the factor."""
        return f"{self.clients.description}, long tail of factor {self.factor:g}"


def join_pieces(pieces: Sequence[Sequence[Indices]]) -> list[Indices]:
    """Join each client's arrays of positions, sorted."""
    empty = np.empty(0, np.int64)
    return [np.sort(np.concatenate([empty, *client_pieces])).astype(np.int64) for client_pieces in pieces]


def apportion(total: int, shares: Sequence[float] | NDArray[np.float64]) -> Indices:
    """Divide a total into integers in proportion to shares, by largest remainders; ties go to the first share.

    Args:
        total: Sum of the integers, at least 0.
        shares: Non-negative values, not all 0.

    >>> apportion(10, [1.0, 2.0, 3.0]).tolist(), apportion(2, [0.5, 0.5, 0.5]).tolist()
    ([2, 3, 5], [1, 1, 0])
    """
    weights = np.asarray(shares, np.float64)
    # Rounding makes ties independent of the last bit.
    exact = np.round(total * weights / weights.sum(), 9)
    counts: Indices = np.floor(exact).astype(np.int64)
    # A stable sort assigns the remaining units to the first of equal remainders.
    largest_first = np.argsort(np.round(counts - exact, 9), kind="stable")
    counts[largest_first[: total - counts.sum()]] += 1
    return counts
