"""A client's prompts, those of all clients, and those that aggregators make of them: what PLAN's rounds pass around."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedvlp.core.phases import Phase
from fedvlp.core.state import State, detached, select
from fedvlp.core.strategies import FedAvg, ServerComputed, Slots
from fedvlp.methods._shared.deep_prompts import Prompts
from fedvlp.methods.plan.aggregators import AttentionOverClients, PromptAttention

Aggregator = Literal["attention", "attention_over_clients"]


class PromptPool(nn.Module):
    """A client's own prompts, a slot for each client's, and the global ones that aggregators make of the slots.

    A slot is empty, that is zero, until its client has sent prompts; only filled slots are aggregated.

    Args:
        start: What own and global prompts are at first.
        num_clients: Number of slots K.
        aggregator: The paper's ``attention``, or the released code's ``attention_over_clients``.
        reduction: r of the paper's aggregators.
        aggregated: Which of `text` and `visual` get an aggregator; the others' mean is taken.
    """

    def __init__(
        self, start: Prompts, num_clients: int, aggregator: Aggregator, reduction: int, aggregated: Collection[str]
    ) -> None:
        super().__init__()
        self.own = nn.ParameterDict()
        self.clients = nn.ParameterDict()
        self.globals = nn.ParameterDict()
        self.aggregators = nn.ModuleDict()
        for kind, prompts in start.items():
            self.own[kind] = nn.Parameter(prompts.clone())
            self.clients[kind] = nn.Parameter(torch.zeros(num_clients, *prompts.shape), requires_grad=False)
            self.globals[kind] = nn.Parameter(prompts.clone(), requires_grad=False)
        for kind in aggregated:
            blocks = start[kind].shape[0]
            width = start[kind].shape[-1]
            if aggregator == "attention":
                self.aggregators[kind] = PromptAttention(blocks, width, reduction)
            else:
                self.aggregators[kind] = AttentionOverClients(blocks, width)

    def phases(self, prefix: str) -> Sequence[Phase]:
        """Returns stage 1, for the prompts, and stage 2, for the aggregators if there are any (PLAN, Eq. 16).

        Args:
            prefix: The pool's name in its method.
        """
        own = f"{prefix}.own"
        clients = f"{prefix}.clients"
        shared = f"{prefix}.globals"
        aggregators = f"{prefix}.aggregators"
        slots = Slots("client", len(self.clients["text"]))
        stages = [Phase("prompts", train=(own,), upload=(clients,), strategy=slots, download=(shared,))]
        if len(self.aggregators):
            stages.append(
                Phase(
                    "aggregators",
                    train=(aggregators,),
                    upload=(aggregators,),
                    strategy=FedAvg("uniform"),
                    download=(clients, aggregators),
                )
            )

        def make_globals(state: State) -> State:
            inside = {name.removeprefix(f"{prefix}."): value for name, value in state.items()}
            return {f"{shared}.{kind}": prompts for kind, prompts in self.aggregate(inside).items()}

        # after the last stage the server has all that the global prompts are made of
        last = stages[-1]
        return (*stages[:-1], replace(last, strategy=ServerComputed(last.strategy, make_globals), deploy=(shared,)))

    def upload(self, prefix: str) -> State:
        """Returns the own prompts, by the names of the slots that they fill on the server."""
        return detached({f"{prefix}.clients.{kind}": prompts for kind, prompts in self.own.items()})

    def aggregate(self, state: State | None = None) -> dict[str, Tensor]:
        """Returns global prompts of the filled slots, differentiably (PLAN, Eqs. 11-13).

        Args:
            state: Tensors by their names in the pool, to use instead of the pool's own.
        """
        tensors = dict(self.named_parameters()) if state is None else state
        made = {}
        for kind in self.own:
            stack = tensors[f"clients.{kind}"]
            filled = stack[stack.flatten(1).any(dim=1)]
            prefix = f"aggregators.{kind}"
            theta = {name.removeprefix(f"{prefix}."): value for name, value in select(tensors, (prefix,)).items()}
            if theta:
                made[kind] = functional_call(self.aggregators[kind], theta, (filled,))
            else:
                made[kind] = filled.mean(dim=0)
        return made

    @torch.no_grad()
    def publish(self) -> None:
        """Takes the own prompts as the global ones, where nobody is there to mix with."""
        for kind, prompts in self.own.items():
            self.globals[kind].copy_(prompts)
