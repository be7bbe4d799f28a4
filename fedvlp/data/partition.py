"""How the images of the source domains are dealt out to clients."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fedvlp.data.images import Indices


class Partitioner(Protocol):
    """Deals images to clients."""

    def __call__(self, labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
        """Returns the positions of each client's images, ascending; no image goes to two clients.

        Args:
            labels: class of each image.
            domains: domain of each image, a position among the source domains.
            generator: the only source of randomness.
        """
        ...


def by_domain(labels: Indices, domains: Indices, generator: np.random.Generator) -> list[Indices]:
    """Makes each domain one client, the setting of federated domain generalisation.

    >>> labels, domains = np.asarray([0, 0, 1]), np.asarray([0, 1, 0])
    >>> [rows.tolist() for rows in by_domain(labels, domains, np.random.default_rng(0))]
    [[0, 2], [1]]
    """
    return [np.flatnonzero(domains == domain).astype(np.int64) for domain in np.unique(domains)]
