"""Prompts of which each client trains its own domain's, while its copies of the others follow the server's slowly."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.core.strategies import FedAvg, Slots, Strategy


class PerDomainPrompts(nn.Module):
    """One prompt for each domain: a client trains its own, and its copies of the others follow the server's (Eq. 8).

    Args:
        start: The first values, stacked over domains.
        momentum: alpha, the share of a copy that stays in a step, in [0, 1); 0 takes what was received at once. With
            None there are no copies: every client trains all, and the server averages them.

    Attributes:
        shared: The server's prompts; after local training the client's own domain's slot is new.
        copies: What a client uses in place of other domains' prompts; they stay on the client between rounds.
        received: The last broadcast.
    """

    copies: Tensor
    received: Tensor

    def __init__(self, start: Float[Tensor, "domains *shape"], momentum: float | None) -> None:
        super().__init__()
        self.momentum = momentum
        self.shared = nn.Parameter(start)
        if momentum is not None:
            self.register_buffer("copies", start.clone())
            self.register_buffer("received", start.clone(), persistent=False)

    @property
    def strategy(self) -> Strategy:
        """How the server combines uploads: each domain's owner fills its slot, or a plain mean."""
        return FedAvg("uniform") if self.momentum is None else Slots(by="domain", slots=len(self.shared))

    @torch.no_grad()
    def start_client(self) -> None:
        """Takes what was just downloaded as what the copies move to."""
        if self.momentum is None:
            return
        self.received.copy_(self.shared)
        if self.momentum == 0:
            self.copies.copy_(self.received)

    def forward(self, domain: int | None) -> list[Tensor]:
        """Returns each domain's prompt, as a client of this domain sees it; with None all are the server's."""
        if domain is None or self.momentum is None:
            return list(self.shared)
        prompts = list(self.copies)
        prompts[domain] = self.shared[domain]
        return prompts

    @torch.no_grad()
    def follow(self, domain: int | None) -> None:
        """Moves the copies of other domains' prompts by P <- alpha P + (1 - alpha) [P]received (Eq. 8)."""
        if self.momentum is None:
            return
        followed = torch.lerp(self.received, self.copies, self.momentum)
        own = slice(None) if domain is None else domain
        followed[own] = self.shared[own]
        self.copies.copy_(followed)

    def upload(self, domain: int) -> Tensor:
        """Returns what a client of this domain sends: its own slot, or all that it trained."""
        return self.shared if self.momentum is None else self.shared[domain]
