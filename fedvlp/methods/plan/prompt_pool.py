"""A client's prompts, those of all clients, and those that aggregators make of them: what PLAN's rounds pass around."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedvlp.core.module import Phase
from fedvlp.core.state import State, detached, select
from fedvlp.core.strategies import DownloadOnly, FedAvg, ServerComputed, Slots
from fedvlp.methods.plan.aggregators import AttentionOverClients, PromptAttention
from fedvlp.methods.plan.deep_prompts import Prompts

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
        empty = {kind: torch.zeros(num_clients, *prompts.shape) for kind, prompts in start.items()}
        self.own = nn.ParameterDict({kind: nn.Parameter(prompts.clone()) for kind, prompts in start.items()})
        self.clients = nn.ParameterDict({kind: nn.Parameter(stack, False) for kind, stack in empty.items()})
        self.globals = nn.ParameterDict({kind: nn.Parameter(prompts.clone(), False) for kind, prompts in start.items()})
        self.aggregators = nn.ModuleDict()
        for kind in aggregated:
            blocks, _, width = start[kind].shape
            paper = aggregator == "attention"
            made = PromptAttention(blocks, width, reduction) if paper else AttentionOverClients(blocks, width)
            self.aggregators[kind] = made

    def phases(self, prefix: str) -> Sequence[Phase]:
        """Returns stage 1, for the prompts, and stage 2, for the aggregators if there are any (PLAN, Eq. 16).

        Args:
            prefix: The pool's name in its method.
        """
        own, clients, shared, aggregators = (
            f"{prefix}.{name}" for name in ("own", "clients", "globals", "aggregators")
        )
        slots = len(self.clients["text"])
        stages = [Phase("prompts", (own,), (clients,), DownloadOnly((shared,), Slots("client", slots)))]
        if len(self.aggregators):
            mixed = DownloadOnly((clients, aggregators), FedAvg("uniform"))
            stages.append(Phase("aggregators", (aggregators,), (aggregators,), mixed))

        def make(state: State) -> State:
            inside = {name.removeprefix(f"{prefix}."): value for name, value in state.items()}
            return {f"{shared}.{kind}": prompts for kind, prompts in self.aggregate(inside).items()}

        derived = ServerComputed(stages[-1].strategy, make, deploys=(shared,))
        return (*stages[:-1], replace(stages[-1], strategy=derived))

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
            theta = {name[len(prefix) + 1 :]: value for name, value in select(tensors, (prefix,)).items()}
            made[kind] = functional_call(self.aggregators[kind], theta, (filled,)) if theta else filled.mean(dim=0)
        return made

    @torch.no_grad()
    def publish(self) -> None:
        """Takes the own prompts as the global ones, where nobody is there to mix with."""
        for kind, prompts in self.own.items():
            self.globals[kind].copy_(prompts)
