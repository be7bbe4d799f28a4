"""Parts of which ways to deal images out to clients are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedvlp.data.files.images import Indices
from fedvlp.utils.errors import UserError

DRAWS = 100
"""How often a random partition is drawn anew before it is given up."""


def within_each_domain(
    labels: Indices, domains: Indices, num_clients: int, divide: Callable[[Indices, int], list[Indices]]
) -> list[Indices]:
    """Divides each domain by itself, so that a client has images of one domain.

    Clients are spread over domains as evenly as they can be, the first domains having one more.

    Args:
        labels: class of each image.
        domains: domain of each image.
        num_clients: clients in all.
        divide: divides the images of one domain, by their labels, among so many clients.

    Returns:
        The positions of each client's images, the clients of the first domain first.

    Raises:
        UserError: if there are fewer clients than domains.
    """
    known = np.unique(domains)
    if num_clients < len(known):
        raise UserError(
            f"Expected at least one client for each of the {len(known)} source domains; got "
            f"num_clients={num_clients}. Raise it, or use a partition that ignores domains, such as Dirichlet."
        )
    clients: list[Indices] = []
    members = np.array_split(np.arange(num_clients), len(known))
    for domain, clients_of_domain in zip(known, members, strict=True):
        rows = np.flatnonzero(domains == domain)
        divided = divide(labels[rows], len(clients_of_domain))
        clients += [rows[positions] for positions in divided]
    return clients


def deal(
    labels: Indices,
    domains: Indices,
    num_clients: int,
    within_domains: bool,
    divide: Callable[[Indices, int], list[Indices]],
) -> list[Indices]:
    """Divides all images together, or each domain by itself as :func:`within_each_domain`."""
    if within_domains:
        return within_each_domain(labels, domains, num_clients, divide)
    return divide(labels, num_clients)


def where(within_domains: bool) -> str:
    """Returns what the description of a partition ends with."""
    return " within domains" if within_domains else ""


def in_order(clients: Sequence[Indices]) -> list[Indices]:
    """Returns each client's positions, ascending."""
    return [np.sort(positions).astype(np.int64) for positions in clients]


def with_enough(draw: Callable[[], list[Indices]], least: int, description: str, draws: int) -> list[Indices]:
    """Returns the first draw in which each client has enough images.

    Raises:
        UserError: if none has.
    """
    most = 0
    for _ in range(draws):
        clients = draw()
        fewest = min(len(positions) for positions in clients)
        if fewest >= least:
            return clients
        most = max(most, fewest)
    raise UserError(
        f"{description}: could not give each of {len(clients)} clients {least} of {sum(map(len, clients))} training "
        f"images in {draws} draw(s); the best gave the poorest client {most}. Lower num_clients or min_examples, "
        "raise alpha, or give more images (shots, validation_fraction, test_fraction)."
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
    exact = np.round(total * weights / weights.sum(), 9)  # so that ties are ties on every machine
    counts: Indices = np.floor(exact).astype(np.int64)
    largest_first = np.argsort(np.round(counts - exact, 9), kind="stable")
    counts[largest_first[: total - counts.sum()]] += 1
    return counts
