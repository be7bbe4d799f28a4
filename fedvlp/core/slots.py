"""Strategies that keep one entry per client or domain instead of one average."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from fedvlp.core.aggregation.base import Aggregator, WeightedMean
from fedvlp.core.state import Client, ClientUpdate, ServerState, State, add_prefix, strip_prefix
from fedvlp.core.strategies import Reducer
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class Slots(Reducer):
    """A stack with one slot per client or domain. Slots without an upload keep their value.

    Uploads have shape [...]; the shared tensor of the same name has shape [slots, ...]. Uploads of one domain's clients
    are averaged, weighted by the clients' training images, or combined by another aggregator. The slot is unchanged if
    there are fewer uploads than the aggregator needs.

    Args:
        by: Whether an upload fills the slot of its ``client`` or of the client's ``domain``.
        slots: Number of slots. If given, too many clients raise an error before training.
        aggregator: Combines the uploads of one domain's clients.

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
        """Fill the slots of the cohort."""
        if not updates:
            return server
        stacks = {name: server.shared[name].clone() for name in updates[0].state}
        memory: State = {}
        # In the order of slots rather than arrivals, because rounding of sums depends on the order.
        for slot in sorted({self.slot(update.client) for update in updates}):
            members = [update for update in updates if self.slot(update.client) == slot]
            memory |= fill_slot(stacks, slot, members, self.aggregator, server)
        return server.updated(stacks, **memory)

    def groups(self, clients: Sequence[Client], cohort_size: int) -> Mapping[str, int]:
        """Count the clients of each domain; no groups if each client has its own slot."""
        return {} if self.by == "client" else groups_by_domain(clients)

    def check(self, clients: Sequence[Client]) -> None:
        """Raise UserError if there are too few slots, or slots are by domain and a client has several domains."""
        needed = max((self.slot(client) for client in clients), default=-1) + 1
        if self.slots is not None and needed > self.slots:
            raise UserError(
                f"The server has {self.slots} slots, one per {self.by}, but {needed} are needed. Increase their number."
            )
        # A client of several domains has domain -1, which would index the last slot.
        mixed = [client.name or str(client.id) for client in clients if self.slot(client) < 0]
        if mixed:
            raise UserError(
                "Expected each client to have images of one domain, because the server keeps one entry per domain; "
                f"{len(mixed)} of {len(clients)} clients have several domains, such as {mixed[0]!r}. "
                "Use the partition ByDomain or Dispersed."
            )

    def slot(self, client: Client) -> int:
        """Get the index of the slot for a client's upload."""
        return client.id if self.by == "client" else client.domain


@dataclass(frozen=True)
class IndicatorMean(Reducer):
    """Mean of each domain's tensor over the clients that moved it, weighted by their images (DiPrompT, Eq. 4).

    Uploads have shape [domains, ...], like the shared tensors. A client counts for a domain if its upload differs from
    the shared tensor; a domain that no client moved keeps its value. With another aggregator, a domain also keeps its
    value if fewer clients moved it than the aggregator needs.

    Args:
        aggregator: Combines the tensors of the clients that moved a domain.

    >>> from fedvlp.core.state import Client
    >>> server = ServerState.start({"prompts": torch.tensor([[1.0], [1.0]])})
    >>> one = ClientUpdate(Client(0, 0, 4), {"prompts": torch.tensor([[5.0], [1.0]])}, 4)
    >>> other = ClientUpdate(Client(1, 0, 4), {"prompts": torch.tensor([[1.0], [1.0]])}, 4)
    >>> IndicatorMean().aggregate(server, [one, other]).shared["prompts"].flatten().tolist()
    [5.0, 1.0]
    """

    aggregator: Aggregator = field(default_factory=WeightedMean)

    def groups(self, clients: Sequence[Client], cohort_size: int) -> Mapping[str, int]:
        """Count the clients of each domain, or all if a client may move any; no groups if each domain is a client."""
        if any(client.domain < 0 for client in clients):
            return {"": cohort_size}
        return groups_by_domain(clients)

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Add the weighted mean of the clients' nonzero moves to each domain."""
        if not updates:
            return server
        # The mean handles all domains at once; other aggregators handle them one after another.
        if not isinstance(self.aggregator, WeightedMean):
            return self._aggregate_domains(server, updates)
        sizes = torch.tensor([update.num_examples for update in updates], dtype=torch.float32)
        means: State = {}
        for name in updates[0].state:
            old = server.shared[name].float()
            # Moves are averaged, so that a domain that no client moved keeps its value exactly.
            moves = torch.stack([update.state[name].float() for update in updates]) - old
            weights = sizes[:, None] * moves.reshape(*moves.shape[:2], -1).any(2)  # [clients, domains]
            shares = weights / weights.sum(0).clamp_min(torch.finfo(torch.float32).tiny)
            means[name] = (old + torch.einsum("kd,kd...->d...", shares, moves)).to(server.shared[name].dtype)
        return server.updated(means)

    def _aggregate_domains(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        stacks = {name: server.shared[name].clone() for name in updates[0].state}
        memory: State = {}
        for name, stack in stacks.items():
            for domain, old in enumerate(server.shared[name]):
                # Clients without images of a domain send exactly the shared tensor.
                movers = [update for update in updates if not torch.equal(update.state[name][domain], old)]
                own = [replace(update, state={name: update.state[name][domain]}) for update in movers]
                memory |= fill_slot({name: stack}, domain, own, self.aggregator, server)
        return server.updated(stacks, **memory)


def fill_slot(
    stacks: State, slot: int, updates: Sequence[ClientUpdate], aggregator: Aggregator, server: ServerState
) -> State:
    """Combine updates in a slot of the stacks, in place, if the aggregator needs no more; return the slot's memory."""
    if len(updates) < aggregator.min_clients:
        return {}
    states = [update.state for update in updates]
    weights = [update.num_examples for update in updates]
    before = {name: server.shared[name][slot] for name in stacks}
    combined, memory = aggregator.aggregate(states, weights, before, strip_prefix(server.memory, str(slot)))
    for name, value in combined.items():
        stacks[name][slot] = value
    return add_prefix(memory, str(slot))


def groups_by_domain(clients: Sequence[Client]) -> Mapping[str, int]:
    """Count the clients of each domain; empty if each domain has one.

    >>> groups_by_domain([Client(0, 0, 5, "photo 1"), Client(1, 0, 5, "photo 2"), Client(2, 1, 5, "sketch")])
    {'domain 0': 2, 'domain 1': 1}
    """
    counts = Counter(client.domain for client in clients)
    if max(counts.values(), default=0) <= 1:
        return {}
    return {f"domain {domain}": counts[domain] for domain in sorted(counts)}
