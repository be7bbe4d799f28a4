"""Clients of few classes, and clients of unequal numbers of images, of any domain or within domains."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedvlp.data.dealing import apportion, deal, in_order, where
from fedvlp.data.files.images import Indices
from fedvlp.data.partition import Partitioner
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import PositiveFloat, PositiveInt

Law = Literal["linear", "exponential", "dirichlet"]


@dataclass(frozen=True)
class FewClasses(Partitioner):
    """Gives each client so many classes, and each class's images evenly and at random to the clients that have it.

    It is the pathological partition of personalised federated learning. Classes have as equally many clients as can be,
    so with as many places as classes no two clients share one, as FedTPG deals out the classes of a data set.

    Args:
        num_clients: Clients in all.
        classes_per_client: Classes of each client; its images are of fewer if a class has fewer images than clients.
        within_domains: Whether each domain is dealt out by itself, so that a client has images of one domain.

    >>> labels = np.repeat([0, 1, 2, 3], 3)
    >>> clients = FewClasses(num_clients=2)(labels, np.zeros(12, np.int64), np.random.default_rng(0))
    >>> [np.bincount(labels[rows], minlength=4).tolist() for rows in clients]
    [[0, 0, 3, 3], [3, 3, 0, 0]]
    """

    num_clients: PositiveInt
    classes_per_client: PositiveInt = 2
    within_domains: bool = False

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Returns the positions of each client's images."""
        return deal(labels, domains, self.num_clients, self.within_domains, partial(self._divide, generator=generator))

    def _divide(self, labels: Indices, num_clients: int, generator: np.random.Generator) -> list[Indices]:
        owners = self._owners(np.unique(labels), num_clients, generator)
        pieces: list[list[Indices]] = [[] for _ in range(num_clients)]
        for label, clients in owners.items():
            rows = generator.permutation(np.flatnonzero(labels == label))
            for client, piece in zip(clients, np.array_split(rows, len(clients)), strict=True):
                pieces[client].append(piece)
        return in_order([np.concatenate(own) for own in pieces])

    def _owners(self, classes: Indices, num_clients: int, generator: np.random.Generator) -> dict[int, list[int]]:
        """Returns the clients of each class: each client takes the classes that fewest have, at random among equals."""
        each = self.classes_per_client
        if each > len(classes):
            raise UserError(f"Expected classes_per_client of at most {len(classes)}, as there are classes; got {each}.")
        if num_clients * each < len(classes):
            raise UserError(
                f"{num_clients} clients of {each} classes each leave some of the {len(classes)} classes to nobody. "
                "Raise num_clients or classes_per_client."
            )
        owners: dict[int, list[int]] = {int(label): [] for label in generator.permutation(classes)}
        for client in range(num_clients):
            order = generator.permutation(classes).tolist()
            for label in sorted(order, key=lambda known: len(owners[known]))[:each]:
                owners[label].append(client)
        return owners

    @property
    def description(self) -> str:
        """What a result says of it."""
        return f"{self.num_clients} clients, {self.classes_per_client} classes each{where(self.within_domains)}"


@dataclass(frozen=True)
class QuantitySkew(Partitioner):
    """Deals images out at random, to clients that differ in how many they have and in nothing else.

    Args:
        num_clients: Clients in all.
        law: How the sizes grow from the first client to the last: by one share from each to the next (linear), by a
            factor (exponential), or by shares drawn from a Dirichlet distribution, in any order (dirichlet).
        ratio: Factor from each client to the next, for the exponential law.
        alpha: Concentration of the Dirichlet distribution: near 0 a client has nearly all, far above 1 all have alike.
        min_examples: Training images that each client gets before the others are dealt out by the law.
        within_domains: Whether each domain is dealt out by itself, so that a client has images of one domain.

    >>> labels = np.zeros(12, np.int64)
    >>> [len(rows) for rows in QuantitySkew(num_clients=3)(labels, labels, np.random.default_rng(0))]
    [2, 4, 6]
    """

    num_clients: PositiveInt
    law: Law = "linear"
    ratio: PositiveFloat = 2.0
    alpha: PositiveFloat = 0.5
    min_examples: PositiveInt = 1
    within_domains: bool = False

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Returns the positions of each client's images."""
        return deal(labels, domains, self.num_clients, self.within_domains, partial(self._divide, generator=generator))

    def _divide(self, labels: Indices, num_clients: int, generator: np.random.Generator) -> list[Indices]:
        least = num_clients * self.min_examples
        if len(labels) < least:
            raise UserError(
                f"Expected at least {least} training images for {self.description}; got {len(labels)}. "
                "Lower num_clients or min_examples."
            )
        sizes = np.maximum(apportion(len(labels), self._shares(num_clients, generator)), self.min_examples)
        # What was given to the poor is taken from the rich, one image at a time.
        while sizes.sum() > len(labels):
            sizes[sizes.argmax()] -= 1
        order = generator.permutation(len(labels))
        return in_order(np.split(order, np.cumsum(sizes)[:-1]))

    def _shares(self, num_clients: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Returns the share of each client, up to a factor."""
        places = np.arange(num_clients, dtype=np.float64)
        shares: NDArray[np.float64] = places + 1
        if self.law == "exponential":
            growth = places * np.log(self.ratio)
            shares = np.exp(growth - growth.max())  # the largest is 1, so that none is infinite
        elif self.law == "dirichlet":
            shares = generator.dirichlet(np.full(num_clients, self.alpha))
        return shares

    @property
    def description(self) -> str:
        """What a result says of it."""
        law = {
            "linear": "linear",
            "exponential": f"exponential {self.ratio:g}",
            "dirichlet": f"Dirichlet {self.alpha:g}",
        }
        least = f", at least {self.min_examples} images each" if self.min_examples > 1 else ""
        return f"{self.num_clients} clients of {law[self.law]} sizes{where(self.within_domains)}{least}"
