"""What travels between clients and server: named tensors, nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

State = dict[str, Tensor]
Value = TypeVar("Value")

ADD_ON = "add_on"
"""Begins, before a slash, the names of what add-ons exchange beside the method's own tensors."""


@dataclass(frozen=True)
class Client:
    """One participant: who it is, which domain its data come from and how much it has.

    Attributes:
        id: position among all clients, from 0.
        domain: position of its domain among the source domains, from 0; -1 if its images come from several.
        num_examples: size of its training split, in images.
        name: what people call it; the domain's name where a domain is one client.
        is_pool: whether it is no participant but all source domains in one place, so that nothing is sent.
    """

    id: int
    domain: int
    num_examples: int
    name: str = ""
    is_pool: bool = False


@dataclass(frozen=True)
class ClientUpdate:
    """Everything one client sends after one phase. What is not in ``state`` was not communicated.

    Attributes:
        client: the sender.
        state: the tensors that it uploads.
        num_examples: images that it trained on, the weight of federated averaging.
        metrics: means over its local steps, for logging; not counted as communication.
        weight: how much it counts in averages, where an add-on of the server decides; None for its images.
    """

    client: Client
    state: State
    num_examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    weight: float | None = None


@dataclass(frozen=True)
class ServerState:
    """All the server knows between rounds; a value that strategies replace and never change.

    Attributes:
        shared: the tensors that clients download.
        deployed: the tensors that are evaluated; ``shared`` unless a strategy keeps an average.
        memory: the strategies' own book-keeping; never leaves the server.
        round: the number of finished rounds.
    """

    shared: State
    deployed: State
    memory: State = field(default_factory=dict)
    round: int = 0

    @classmethod
    def start(cls, shared: State) -> ServerState:
        """Returns the state before the first round, in which what is shared is also deployed."""
        return cls(shared=shared, deployed=dict(shared))

    def updated(self, shared: State, **memory: Tensor) -> ServerState:
        """Returns a new server state in which ``shared`` replaces the tensors of the same names."""
        return replace(self, shared=self.shared | shared, deployed=self.deployed | shared, memory=self.memory | memory)


def matches_prefix(prefixes: Iterable[str], name: str) -> bool:
    """Whether a dotted name equals one of the prefixes or lies below it.

    >>> matches_prefix(["prompt"], "prompt.text"), matches_prefix(["prompt"], "prompts")
    (True, False)
    """
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def select(state: Mapping[str, Value], prefixes: Iterable[str]) -> dict[str, Value]:
    """Keeps the entries whose dotted name equals a prefix or lies below it.

    >>> select({"prompt": 1, "router.keys": 2, "routers": 3}, ["router"])
    {'router.keys': 2}
    """
    chosen = tuple(prefixes)
    return {name: value for name, value in state.items() if matches_prefix(chosen, name)}


def weighted_mean(states: Sequence[State], weights: Sequence[float]) -> State:
    """Averages states key by key, sum_k w_k s_k / sum_k w_k, in float32 and in the order given.

    Args:
        states: at least one; all with the same names and shapes.
        weights: one a state, at least zero, not all zero.

    Raises:
        ValueError: if names or shapes differ, a weight is negative or all are zero.

    >>> weighted_mean([{"p": torch.tensor([0.0])}, {"p": torch.tensor([3.0])}], [2, 1])
    {'p': tensor([1.])}
    """
    total = float(sum(weights))
    if len(states) != len(weights) or not states or min(weights) < 0 or total <= 0:
        raise ValueError(f"Expected one weight >= 0 a state, not all zero; got {len(states)} states, {list(weights)}.")
    check_alike(states)
    mean: State = {}
    for name in states[0]:
        mean[name] = _mean([state[name] for state in states], weights, total)
    return mean


def check_alike(states: Sequence[State]) -> None:
    """Raises ValueError unless all states have the same names and shapes."""
    for state in states[1:]:
        if state.keys() != states[0].keys():
            raise ValueError(
                f"Clients uploaded different tensors: {sorted(states[0].keys() ^ state.keys())} are not in every "
                "update. Make upload_state() return the same names on every client."
            )
    for name in states[0]:
        if len({state[name].shape for state in states}) > 1:
            shapes = [tuple(state[name].shape) for state in states]
            raise ValueError(f"Clients uploaded {name!r} in different shapes: {shapes}. All must agree to be averaged.")


def _mean(values: Sequence[Tensor], weights: Sequence[float], total: float) -> Tensor:
    """Returns the weighted mean of one tensor over clients."""
    mean = torch.zeros_like(values[0], dtype=torch.float32)
    for value, weight in zip(values, weights, strict=True):
        mean.add_(value.float(), alpha=weight / total)
    return mean.to(values[0].dtype)


def numel(state: State) -> int:
    """Counts the numbers in a state, the unit in which papers report communication."""
    return sum(tensor.numel() for tensor in state.values())


def num_bytes(state: State) -> int:
    """Counts the bytes of a state as it would be sent, uncompressed."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def detached(state: Mapping[str, Tensor]) -> State:
    """Copies a state to the CPU so that later training can't change it."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}


def is_finite(*states: State) -> bool:
    """Whether no tensor of the states holds NaN or infinity; where their sum has none, it is soon seen."""
    for state in states:
        for tensor in state.values():
            # A sum is the fastest look at all numbers: NaN and infinity stay in it, or meet and become NaN.
            if not tensor.is_floating_point() or math.isfinite(tensor.sum().item()):
                continue
            if not bool(torch.isfinite(tensor).all()):
                return False
    return True
