"""A server that keeps one entry a client or a domain, instead of one average."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedvlp.core.aggregation.base import Aggregator, WeightedMean
from fedvlp.core.state import Client, ClientUpdate, ServerState, State, add_prefix, strip_prefix
from fedvlp.core.strategies import Reducer
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class Slots(Reducer):
    """Server keeps a stack with one slot a client or a domain; absent slots keep their value.

    Uploads have shape [...]; the shared tensor of the same name has shape [slots, ...]. Clients of one domain are
    averaged, weighted by their training images, or combined by another aggregator. Fewer uploads than it needs leave
    the slot as it is.

    Args:
        by: whose slot an upload fills: the ``client``'s own or its ``domain``'s.
        slots: how many there are, so that too many clients are refused before training; not checked if not given.
        aggregator: what combines the uploads of one domain's clients.

    >>> from fedvlp.core.state import Client
    >>> server = ServerState.start({"prompts": torch.zeros(3, 1)})
    >>> update = ClientUpdate(Client(id=7, domain=1, num_examples=4), {"prompts": torch.tensor([2.0])}, 4)
    >>> Slots(by="domain").aggregate(server, [update]).shared["prompts"].flatten().tolist()
    [0.0, 2.0, 0.0]
    """

    by: Literal["client", "domain"]
    slots: int | None = None
    aggregator: Aggregator = field(default_factory=WeightedMean)

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Fill the slots of those who took part."""
        if not updates:
            return server
        stacks = {name: server.shared[name].clone() for name in updates[0].state}
        memory: State = {}
        # In the order of slots and not of arrivals, so that sums are taken in one order.
        for slot in sorted({self.slot(update.client) for update in updates}):
            members = [update for update in updates if self.slot(update.client) == slot]
            if len(members) < self.aggregator.min_clients:
                continue
            states = [member.state for member in members]
            weights = [member.num_examples for member in members]
            before = {name: server.shared[name][slot] for name in stacks}
            made, remembered = self.aggregator.aggregate(
                states, weights, before, strip_prefix(server.memory, str(slot))
            )
            memory |= add_prefix(remembered, str(slot))
            for name, value in made.items():
                stacks[name][slot] = value
        return server.updated(stacks, **memory)

    def groups(self, clients: Sequence[Client], cohort_size: int) -> Mapping[str, int]:
        """Return the clients of each domain; none where each slot is one client's."""
        return {} if self.by == "client" else groups_by_domain(clients)

    def check(self, clients: Sequence[Client]) -> None:
        """Raise UserError if slots are missing, or are by domain and a client has images of several domains."""
        needed = max((self.slot(client) for client in clients), default=-1) + 1
        if self.slots is not None and needed > self.slots:
            raise UserError(f"The server has {self.slots} slots, one a {self.by}, but {needed} are needed. Make more.")
        # Such a client has domain -1, which would index the last slot without an error.
        mixed = [client.name or str(client.id) for client in clients if self.slot(client) < 0]
        if mixed:
            raise UserError(
                "Expected each client to have images of one domain, since the server keeps an entry a domain; "
                f"{len(mixed)} of {len(clients)} clients have several, such as {mixed[0]!r}. "
                "Use the partition ByDomain or Dispersed."
            )

    def slot(self, client: Client) -> int:
        """Return the slot that this client's upload fills."""
        return client.id if self.by == "client" else client.domain


@dataclass(frozen=True)
class IndicatorMean(Reducer):
    """Mean of each domain's tensor over the clients that moved it, weighted by their images (DiPrompT, Eq. 4).

    Uploads have shape [domains, ...], as the shared tensors that the clients started from. A client counts for a domain
    where its upload differs from what is shared; a domain that no client moved keeps its value. Another aggregator
    combines the uploads of the clients that moved a domain, and one that too few moved for it keeps its value.

    Args:
        aggregator: what combines the clients' tensors of one domain.

    >>> from fedvlp.core.state import Client
    >>> server = ServerState.start({"prompts": torch.tensor([[1.0], [1.0]])})
    >>> one = ClientUpdate(Client(0, 0, 4), {"prompts": torch.tensor([[5.0], [1.0]])}, 4)
    >>> other = ClientUpdate(Client(1, 0, 4), {"prompts": torch.tensor([[1.0], [1.0]])}, 4)
    >>> IndicatorMean().aggregate(server, [one, other]).shared["prompts"].flatten().tolist()
    [5.0, 1.0]
    """

    aggregator: Aggregator = field(default_factory=WeightedMean)

    def groups(self, clients: Sequence[Client], cohort_size: int) -> Mapping[str, int]:
        """Return the clients of each domain, or all where a client may move any; none if a domain is a client."""
        if any(client.domain < 0 for client in clients):
            return {"": cohort_size}
        return groups_by_domain(clients)

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Add to each domain the weighted mean of the clients' moves that are not zero."""
        if not updates:
            return server
        # The mean is taken of all domains at once; any other aggregator sees one domain's uploads after another.
        if not isinstance(self.aggregator, WeightedMean):
            return self._by_aggregator(server, updates)
        sizes = torch.tensor([update.num_examples for update in updates], dtype=torch.float32)
        means: State = {}
        for name in updates[0].state:
            uploads = torch.stack([update.state[name] for update in updates])
            means[name] = self._mean(server.shared[name], uploads, sizes)
        return server.updated(means)

    def _by_aggregator(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Let the aggregator combine, tensor by tensor and domain by domain, the uploads of those who moved it."""
        stacks = {name: server.shared[name].clone() for name in updates[0].state}
        memory: State = {}
        for name, stack in stacks.items():
            for domain, old in enumerate(server.shared[name]):
                # A client that has no image of a domain sends its tensor unchanged, to the bit.
                movers = [update for update in updates if not torch.equal(update.state[name][domain], old)]
                if len(movers) < self.aggregator.min_clients:
                    continue
                states = [{name: update.state[name][domain]} for update in movers]
                weights = [update.num_examples for update in movers]
                own = strip_prefix(server.memory, str(domain))
                made, remembered = self.aggregator.aggregate(states, weights, {name: old}, own)
                stack[domain] = made[name]
                memory |= add_prefix(remembered, str(domain))
        return server.updated(stacks, **memory)

    @staticmethod
    def _mean(old: Tensor, uploads: Tensor, sizes: Tensor) -> Tensor:
        """Return [domains, ...] from ``uploads`` [clients, domains, ...] and the clients' ``sizes`` [clients]."""
        # Differences and not values, so that a domain that no client moved keeps its value exactly.
        moves = uploads.float() - old.float()
        weights = sizes[:, None] * moves.reshape(*moves.shape[:2], -1).any(2)  # [clients, domains]
        total = weights.sum(0)  # [domains]
        shares = weights / total.clamp_min(torch.finfo(torch.float32).tiny)
        return (old.float() + torch.einsum("kd,kd...->d...", shares, moves)).to(old.dtype)


def groups_by_domain(clients: Sequence[Client]) -> Mapping[str, int]:
    """How many clients each domain has; empty if each has one.

    >>> groups_by_domain([Client(0, 0, 5, "photo 1"), Client(1, 0, 5, "photo 2"), Client(2, 1, 5, "sketch")])
    {'domain 0': 2, 'domain 1': 1}
    """
    counts = Counter(client.domain for client in clients)
    if max(counts.values(), default=0) <= 1:
        return {}
    return {f"domain {domain}": counts[domain] for domain in sorted(counts)}
