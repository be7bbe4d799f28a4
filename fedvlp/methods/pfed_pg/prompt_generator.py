"""The server of pFedPG: it generates each client's prompt, and learns from where the client's training led it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from fedvlp.core.state import Client, ClientUpdate, ServerState, State, select
from fedvlp.core.strategies import Slots, Strategy


class PromptGenerator(nn.Module):
    """Attention in which the descriptor of a client asks, and the basis of all prompts answers (Eqs. 3, 4).

    Basis and descriptors start with a standard deviation of 0.5, and the maps so that they keep it. From much less
    attention would be even, so that all tokens of a prompt, which have no positions, would be one and the same for
    ever; from more it would change so fast that the server's steps at its usual learning rate go too far.

    Args:
        num_clients: K, the number of descriptors.
        prompt_length: L, of the prompts, of the basis and of each descriptor.
        width: W, of their tokens and inside the attention.
    """

    def __init__(self, num_clients: int, prompt_length: int, width: int) -> None:
        super().__init__()
        self.basis = nn.Parameter(0.5 * torch.randn(prompt_length, width))
        self.descriptors = nn.Parameter(0.5 * torch.randn(num_clients, prompt_length, width))
        self.query = nn.Parameter(nn.init.xavier_uniform_(torch.empty(width, width)))
        self.key = nn.Parameter(nn.init.xavier_uniform_(torch.empty(width, width)))
        self.value = nn.Parameter(nn.init.xavier_uniform_(torch.empty(width, width)))
        self.out = nn.Parameter(nn.init.xavier_uniform_(torch.empty(width, width)))
        self.requires_grad_(False)  # the server alone learns it

    def forward(self, client: int | None) -> Float[Tensor, "L W"]:
        """Returns the prompt of a client, or that of the mean descriptor for None."""
        descriptor = self.descriptors.mean(dim=0) if client is None else self.descriptors[client]
        scores = (descriptor @ self.query) @ (self.basis @ self.key).mT / self.query.shape[1] ** 0.5  # [L, L]
        prompt: Tensor = scores.softmax(dim=-1) @ (self.basis @ self.value) @ self.out
        return prompt


@dataclass(frozen=True)
class PromptGeneration(Strategy):
    """Sends each client the prompt generated for it, and moves the generator to where clients moved their prompts.

    The server's ``generator.*`` are the generator's parameters phi, and ``prompt`` is that of the mean descriptor, the
    only one deployed. Clients download a prompt of their own by that name, and upload it as they trained it.

    Args:
        generator: Makes prompts of parameters; its own are not looked at.
        learning_rate: alpha, above 0.
        clients: Refuses more clients than there are descriptors.
        deploys: All that evaluation needs of what is shared.
    """

    generator: PromptGenerator
    learning_rate: float
    clients: Slots
    deploys: tuple[str, ...] = ("prompt",)

    @torch.no_grad()
    def broadcast(self, server: ServerState, client: Client) -> State:
        """Returns P_n."""
        return {"prompt": self._prompt(server.shared, client.id)}

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Takes phi <- phi + alpha sum_n (dP_n / dphi)^T (what client n sent - P_n) (Eqs. 5, 6)."""
        if not updates:
            return server
        phi = {name: value.clone().requires_grad_() for name, value in select(server.shared, ("generator",)).items()}
        with torch.enable_grad():
            sent = torch.stack([self._prompt(phi, update.client.id) for update in updates])  # [clients, L, W]
        moves = torch.stack([update.state["prompt"] for update in updates]) - sent.detach()
        steps = torch.autograd.grad(sent, list(phi.values()), grad_outputs=moves)
        after = {name: phi[name].detach() + self.learning_rate * step for name, step in zip(phi, steps, strict=True)}
        with torch.no_grad():
            after["prompt"] = self._prompt(after, None)
        server = server.updated(after)
        return replace(server, deployed=select(server.deployed, self.deploys))

    def check(self, clients: Sequence[Client]) -> None:
        """Raises UserError if descriptors are missing."""
        self.clients.check(clients)

    def _prompt(self, state: State, client: int | None) -> Float[Tensor, "L W"]:
        """Returns the prompt that parameters make, of `generator.*` of a state."""
        phi = {name.removeprefix("generator."): value for name, value in select(state, ("generator",)).items()}
        prompt: Tensor = functional_call(self.generator, phi, (client,))
        return prompt
