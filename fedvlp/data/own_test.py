"""Test images of each client's own: the test images of its domains and classes, in the proportions of its training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from fedvlp.core.state import Client
from fedvlp.data.dealing import apportion
from fedvlp.data.files.images import Images, Indices
from fedvlp.data.splits import SplitPart
from fedvlp.utils.errors import UserError


def own_test_parts(
    images: Mapping[str, Images],
    test_rows: Mapping[str, Indices],
    training: Sequence[SplitPart],
    generator: np.random.Generator,
) -> list[SplitPart]:
    """Deals the test images of each domain and class to the clients that train on it, as their training images are.

    What rounding leaves a client short of in one class, it is given first in the next. Test images of a class on which
    nobody trains are nobody's.

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
