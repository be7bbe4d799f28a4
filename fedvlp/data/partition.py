"""How the training images of the source domains are divided among clients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from fedvlp.core.roles import CENTRALISED
from fedvlp.data.dealing import DRAWS, deal, in_order, where, with_enough, within_each_domain
from fedvlp.data.files.images import Indices
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import PositiveFloat, PositiveInt


@runtime_checkable
class Partitioner(Protocol):
    """Deals images to clients."""

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Returns the positions of each client's images, ascending; each image goes to exactly one client.

        Args:
            labels: class of each image.
            domains: domain of each image, a position among the source domains.
            generator: the only source of randomness.
        """
        ...

    @property
    def description(self) -> str:
        """What a result says of it, such as ``30 clients, Dirichlet 0.5 within domains``."""
        ...


@dataclass(frozen=True)
class ByDomain(Partitioner):
    """Makes each domain one client, the setting of federated domain generalisation.

    >>> labels, domains = np.asarray([0, 0, 1]), np.asarray([0, 1, 0])
    >>> [rows.tolist() for rows in ByDomain()(labels, domains, np.random.default_rng(0))]
    [[0, 2], [1]]
    """

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Returns the positions of each domain."""
        return [np.flatnonzero(domains == domain).astype(np.int64) for domain in np.unique(domains)]

    @property
    def description(self) -> str:
        """What a result says of it."""
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
        """Returns all positions."""
        return [np.arange(len(labels))]

    @property
    def description(self) -> str:
        """What a result says of it."""
        return CENTRALISED


@dataclass(frozen=True)
class Dispersed(Partitioner):
    """Disperses each domain over several clients, so that a client has images of one domain.

    Clients are dealt to domains as evenly as possible; the first domains get one more where it does not come out even.

    Args:
        num_clients: Clients in all, at least one for each source domain.
        alpha: Concentration of the Dirichlet distribution that draws, for each class of a domain, the shares of that
            domain's clients: near 0 a class goes to one client, far above 1 to all alike. null deals the images of a
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

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Returns the positions of each client's images, the clients of the first domain first."""
        return within_each_domain(
            labels, domains, self.num_clients, lambda own, count: self._divide(own, count, generator)
        )

    def _divide(self, labels: Indices, count: int, generator: np.random.Generator) -> list[Indices]:
        """Divides the images of one domain among so many clients."""
        alpha = self.alpha
        if alpha is None:
            order = generator.permutation(len(labels))
            return with_enough(lambda: in_order(np.array_split(order, count)), self.min_examples, self.description, 1)
        return with_enough(
            lambda: _dirichlet(labels, count, alpha, generator), self.min_examples, self.description, DRAWS
        )

    @property
    def description(self) -> str:
        """What a result says of it."""
        rule = "IID" if self.alpha is None else f"Dirichlet {self.alpha:g}"
        return f"{self.num_clients} clients, {rule} within domains{_describe_least(self.min_examples)}"


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Deals each class by shares drawn from a Dirichlet distribution, whatever the domain (Hsu et al. 2019).

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

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Returns the positions of each client's images."""
        return with_enough(
            lambda: _dirichlet(labels, self.num_clients, self.alpha, generator),
            self.min_examples,
            self.description,
            DRAWS,
        )

    @property
    def description(self) -> str:
        """What a result says of it."""
        return f"{self.num_clients} clients, Dirichlet {self.alpha:g} over classes{_describe_least(self.min_examples)}"


@dataclass(frozen=True)
class Shards(Partitioner):
    """Sorts the images by class, cuts them into shards and gives each client some (McMahan et al. 2017, Section 3).

    A client has images of few classes. Methods that tell clients' domains apart need ``within_domains``.

    Args:
        num_clients: Clients in all.
        shards_per_client: Shards that each client gets, at random; their sizes differ by at most one image.
        within_domains: Whether each domain is cut and dealt out by itself, so that a client has images of one domain.

    >>> labels = np.asarray([1, 0, 1, 0])
    >>> clients = Shards(num_clients=2, shards_per_client=1)(labels, np.zeros(4, np.int64), np.random.default_rng(0))
    >>> sorted(rows.tolist() for rows in clients)
    [[0, 2], [1, 3]]
    """

    num_clients: PositiveInt
    shards_per_client: PositiveInt = 2
    within_domains: bool = False

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Returns the positions of each client's images."""
        return deal(labels, domains, self.num_clients, self.within_domains, partial(self._divide, generator=generator))

    def _divide(self, labels: Indices, num_clients: int, generator: np.random.Generator) -> list[Indices]:
        count = num_clients * self.shards_per_client
        if len(labels) < count:
            raise UserError(
                f"Expected at least {count} training images for {self.description}; got {len(labels)}. "
                "Lower num_clients or shards_per_client."
            )
        order = generator.permutation(len(labels))  # so that a class is not cut by domain
        shards = np.array_split(order[np.argsort(labels[order], kind="stable")], count)
        owners = generator.permutation(count).reshape(num_clients, self.shards_per_client)
        clients = []
        for own in owners:
            clients.append(np.concatenate([shards[shard] for shard in own]))
        return in_order(clients)

    @property
    def description(self) -> str:
        """What a result says of it."""
        return f"{self.num_clients} clients, {self.shards_per_client} class shards each{where(self.within_domains)}"


def _describe_least(min_examples: int) -> str:
    return f", at least {min_examples} images each" if min_examples > 1 else ""


def _dirichlet(labels: Indices, count: int, alpha: float, generator: np.random.Generator) -> list[Indices]:
    """Divides each class in proportions that are drawn for it; cuts are rounded to whole images."""
    pieces: list[list[Indices]] = [[] for _ in range(count)]
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        proportions = generator.dirichlet(np.full(count, alpha))
        cuts = np.rint(np.cumsum(proportions)[:-1] * len(rows)).astype(np.int64)
        # Rounding favours places in the middle, so each class gives its clients other places.
        order = generator.permutation(count)
        for client, piece in zip(order, np.split(rows, cuts), strict=True):
            pieces[client].append(piece)
    return in_order([np.concatenate(own) if own else np.empty(0, np.int64) for own in pieces])
