"""A server that keeps one entry a client or a domain, instead of one average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedvlp.core.aggregation import AggregationRule, WeightedMean
from fedvlp.core.state import Client, ClientUpdate, ServerState, State
from fedvlp.core.strategies.base import BroadcastShared
from fedvlp.core.strategies.rules import combined, groups_by_domain
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class Slots(BroadcastShared):
    """Server keeps a stack with one slot a client or a domain; absent slots keep their value.

    Uploads have shape [...]; the shared tensor of the same name has shape [slots, ...]. Clients of one domain are
    averaged, weighted by their training images, or combined by another rule. Fewer uploads than the rule needs leave
    the slot as it is.

    Args:
        by: whose slot an upload fills: the ``client``'s own or its ``domain``'s.
        slots: how many there are, so that too many clients are refused before training; not checked if not given.
        rule: what combines the uploads of one domain's clients.
        place: names the rule's memory among that of others; the federation gives each rule of a round its own.

    >>> from fedvlp.core.state import Client
    >>> server = ServerState.start({"prompts": torch.zeros(3, 1)})
    >>> update = ClientUpdate(Client(id=7, domain=1, num_examples=4), {"prompts": torch.tensor([2.0])}, 4)
    >>> Slots(by="domain").aggregate(server, [update]).shared["prompts"].flatten().tolist()
    [0.0, 2.0, 0.0]
    """

    by: Literal["client", "domain"]
    slots: int | None = None
    rule: AggregationRule = field(default_factory=WeightedMean)
    place: str = "Slots"

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Fills the slots of those who took part."""
        if not updates:
            return server
        stacks = {name: server.shared[name].clone() for name in updates[0].state}
        memory: State = {}
        for slot in sorted({self.slot(update.client) for update in updates}):
            members = [update for update in updates if self.slot(update.client) == slot]
            if len(members) < self.rule.min_clients:
                continue
            states = [member.state for member in members]
            weights = [member.num_examples for member in members]
            before = {name: server.shared[name][slot] for name in stacks}
            made, remembered = combined(self.rule, states, weights, before, server, f"{self.place}/{slot}")
            memory |= remembered
            for name, value in made.items():
                stacks[name][slot] = value
        return server.updated(stacks, **memory)

    def groups(self, clients: Sequence[Client], cohort_size: int) -> Mapping[str, int]:
        """Returns the clients of each domain; nobody where each slot is one client's."""
        return {} if self.by == "client" else groups_by_domain(clients)

    def check(self, clients: Sequence[Client]) -> None:
        """Raises UserError if slots are missing, or are by domain and a client has images of several domains."""
        needed = max((self.slot(client) for client in clients), default=-1) + 1
        if self.slots is not None and needed > self.slots:
            raise UserError(f"The server has {self.slots} slots, one a {self.by}, but {needed} are needed. Make more.")
        mixed = [client.name or str(client.id) for client in clients if self.slot(client) < 0]
        if mixed:
            raise UserError(
                "Expected each client to have images of one domain, since the server keeps an entry a domain; "
                f"{len(mixed)} of {len(clients)} clients have several, such as {mixed[0]!r}. "
                "Use the partition ByDomain or Dispersed."
            )

    def slot(self, client: Client) -> int:
        """Returns the slot that this client's upload fills."""
        return client.id if self.by == "client" else client.domain


@dataclass(frozen=True)
class IndicatorMean(BroadcastShared):
    """Mean of each domain's tensor over the clients that moved it, weighted by their images (DiPrompT, Eq. 4).

    Uploads have shape [domains, ...], as the shared tensors that the clients went on from. A client counts for a domain
    where its upload differs from what is shared; a domain that nobody moved keeps its value. With another rule, it
    combines the uploads of the clients that moved a domain, and one that too few moved for it keeps its value.

    Args:
        rule: what combines the clients' tensors of one domain.
        place: names the rule's memory among that of others; the federation gives each rule of a round its own.

    >>> from fedvlp.core.state import Client
    >>> server = ServerState.start({"prompts": torch.tensor([[1.0], [1.0]])})
    >>> one = ClientUpdate(Client(0, 0, 4), {"prompts": torch.tensor([[5.0], [1.0]])}, 4)
    >>> other = ClientUpdate(Client(1, 0, 4), {"prompts": torch.tensor([[1.0], [1.0]])}, 4)
    >>> IndicatorMean().aggregate(server, [one, other]).shared["prompts"].flatten().tolist()
    [5.0, 1.0]
    """

    rule: AggregationRule = field(default_factory=WeightedMean)
    place: str = "IndicatorMean"

    def groups(self, clients: Sequence[Client], cohort_size: int) -> Mapping[str, int]:
        """Returns the clients of each domain, or all where a client may move any; nobody if a domain is a client."""
        if any(client.domain < 0 for client in clients):
            return {"": cohort_size}
        return groups_by_domain(clients)

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Adds to each domain the weighted mean of the clients' moves that are not zero."""
        if not updates:
            return server
        if not isinstance(self.rule, WeightedMean):
            return self._by_rule(server, updates)
        sizes = torch.tensor([update.num_examples for update in updates], dtype=torch.float32)
        means: State = {}
        for name in updates[0].state:
            uploads = torch.stack([update.state[name] for update in updates])
            means[name] = self._mean(server.shared[name], uploads, sizes)
        return server.updated(means)

    def _by_rule(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Lets the rule combine, tensor by tensor and domain by domain, the uploads of those who moved it."""
        stacks = {name: server.shared[name].clone() for name in updates[0].state}
        memory: State = {}
        for name, stack in stacks.items():
            for domain, old in enumerate(server.shared[name]):
                movers = [update for update in updates if not torch.equal(update.state[name][domain], old)]
                if len(movers) < self.rule.min_clients:
                    continue
                states = [{name: update.state[name][domain]} for update in movers]
                weights = [update.num_examples for update in movers]
                made, kept = combined(self.rule, states, weights, {name: old}, server, f"{self.place}/{domain}")
                stack[domain] = made[name]
                memory |= kept
        return server.updated(stacks, **memory)

    @staticmethod
    def _mean(old: Tensor, uploads: Tensor, sizes: Tensor) -> Tensor:
        """Returns [domains, ...] from ``uploads`` [clients, domains, ...] and the clients' ``sizes`` [clients]."""
        moves = uploads.float() - old.float()
        weights = sizes[:, None] * moves.reshape(*moves.shape[:2], -1).any(2)  # [clients, domains]
        total = weights.sum(0)  # [domains]
        shares = weights / total.clamp_min(torch.finfo(torch.float32).tiny)
        return (old.float() + torch.einsum("kd,kd...->d...", shares, moves)).to(old.dtype)
