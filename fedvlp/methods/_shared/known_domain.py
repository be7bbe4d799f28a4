"""The domain of a client, for methods whose clients know theirs."""

from __future__ import annotations

from fedvlp.core.state import Client
from fedvlp.utils.errors import UserError


def known_domain(client: Client, needed_by: str, otherwise: str = "") -> int:
    """Returns the domain of a client that has images of one domain.

    Args:
        client: Who trains.
        needed_by: What needs the domain, for the message.
        otherwise: How to do without it, such as ``, or domain_labels: false``.

    Raises:
        UserError: If the client has images of several domains.

    >>> known_domain(Client(0, 2, 9), "FedAPT")
    2
    """
    if client.domain < 0:
        raise UserError(
            f"{needed_by} needs clients of one domain each, but {client.name!r} has several. "
            f"Use the partition ByDomain or Dispersed{otherwise}."
        )
    return client.domain
