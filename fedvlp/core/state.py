"""States of clients, server and federation, updates, and checks of updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

State = dict[str, Tensor]
Value = TypeVar("Value")
# Metrics of one round, by column of ``metrics.csv``.
RoundMetrics = dict[str, Any]

# Prefix, before a slash, of the tensors that add-ons exchange in addition to the method's.
ADD_ON = "add_on"
NOT_FINITE = "uploads NaN or infinity"
KEEPS_NOT_FINITE = "keeps NaN or infinity"


@dataclass(frozen=True)
class Client:
    """One participant of a federation.

    Attributes:
        id: Index among all clients, from 0.
        domain: Index of its domain among the source domains, from 0; -1 if its images come from several domains.
        num_examples: Number of training images.
        name: Displayed name; the domain's name if the domain is one client.
        is_pool: Whether it is the pool of all source domains in centralised training, which sends nothing.
    """

    id: int
    domain: int
    num_examples: int
    name: str = ""
    is_pool: bool = False


@dataclass(frozen=True)
class ClientUpdate:
    """Everything that one client sends after one phase.

    Attributes:
        state: The uploaded tensors. Only these count as communication.
        num_examples: Number of training images, the weight in federated averaging.
        metrics: Means over its local steps, for logging.
        weight: Weight in averages if an add-on sets it; None for the number of images.
    """

    client: Client
    state: State
    num_examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    weight: float | None = None


@dataclass(frozen=True)
class ServerState:
    """The server's state between rounds. Strategies replace it and never change it.

    Attributes:
        shared: The tensors that clients download.
        deployed: The tensors that are evaluated; ``shared`` unless a strategy deploys an average.
        memory: The strategies' own state, which never leaves the server.
        round: The number of finished rounds.
    """

    shared: State
    deployed: State
    memory: State = field(default_factory=dict)
    round: int = 0

    @classmethod
    def start(cls, shared: State) -> ServerState:
        """Make the state before the first round, which deploys the shared tensors."""
        return cls(shared=shared, deployed=dict(shared))

    def updated(self, shared: State, **memory: Tensor) -> ServerState:
        """Make a new state in which ``shared`` replaces the tensors of the same names."""
        # Shared tensors are also deployed. A strategy that deploys an average replaces them afterwards.
        return replace(self, shared=self.shared | shared, deployed=self.deployed | shared, memory=self.memory | memory)

    def scoped(self, group: str, change: Callable[[ServerState], ServerState]) -> ServerState:
        """Apply a change that reads and replaces only the memory under ``group/``, without that prefix."""
        others = {name: value for name, value in self.memory.items() if not name.startswith(f"{group}/")}
        after = change(replace(self, memory=strip_prefix(self.memory, group)))
        return replace(after, memory=others | add_prefix(after.memory, group))


@dataclass(frozen=True)
class CallbackStates:
    """States of callbacks by key, as JSON values and tensors, and the keys of callbacks that stopped the run."""

    states: Mapping[str, Any] = field(default_factory=dict)
    stopped_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunState:
    """The state of a federation after a round, from which it can resume."""

    server: ServerState  # ``server.round`` rounds are finished
    personal: Mapping[int, State] = field(default_factory=dict)  # personal tensors by client id
    history: tuple[RoundMetrics, ...] = ()  # metrics of each finished round
    # States of each client's optimizers and add-ons, by client id; empty if they are reset in each round.
    optimizer_states: Mapping[int, State] = field(default_factory=dict)
    callbacks: CallbackStates = field(default_factory=CallbackStates)


def matches_prefix(prefixes: Iterable[str], name: str) -> bool:
    """Whether a dotted name equals one of the prefixes or is below it.

    >>> matches_prefix(["prompt"], "prompt.text"), matches_prefix(["prompt"], "prompts")
    (True, False)
    """
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def select(state: Mapping[str, Value], prefixes: Iterable[str]) -> dict[str, Value]:
    """Keep the entries whose dotted name equals a prefix or is below it."""
    chosen = tuple(prefixes)
    return {name: value for name, value in state.items() if matches_prefix(chosen, name)}


def add_prefix(tensors: State, group: str) -> State:
    """Put the tensors under ``group/``."""
    return {f"{group}/{name}": value for name, value in tensors.items()}


def strip_prefix(tensors: State, group: str) -> State:
    """Select the tensors under ``group/``, and remove this prefix.

    >>> strip_prefix({"3/prompt": torch.zeros(1), "30/prompt": torch.ones(1)}, "3")
    {'prompt': tensor([0.])}
    """
    start = f"{group}/"
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def detached(state: Mapping[str, Tensor]) -> State:
    """Copy a state to the CPU, so that later training can't change it."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}


def numel(state: State) -> int:
    """Count the entries of all tensors, the unit in which papers report communication."""
    return sum(tensor.numel() for tensor in state.values())


def num_bytes(state: State) -> int:
    """Count the uncompressed bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def weighted_mean(states: Sequence[State], weights: Sequence[float]) -> State:
    """Average at least one state, sum_k w_k s_k / sum_k w_k, in float32 and in the given order.

    All states have the same names and shapes. Weights are at least 0 and not all 0.

    >>> weighted_mean([{"p": torch.tensor([0.0])}, {"p": torch.tensor([3.0])}], [2, 1])
    {'p': tensor([1.])}
    """
    total = float(sum(weights))
    means: State = {}
    for name, first in states[0].items():
        # In place, to avoid a temporary tensor per client.
        mean = torch.zeros_like(first, dtype=torch.float32)
        for state, weight in zip(states, weights, strict=True):
            mean.add_(state[name].float(), alpha=weight / total)
        means[name] = mean.to(first.dtype)
    return means


def is_finite(*states: State) -> bool:
    """Whether the states are free of NaN and infinity."""
    tensors = chain.from_iterable(state.values() for state in states)
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


class TensorSpec(NamedTuple):
    """The shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        """Format it like ``[2, 3] of float32``."""
        return f"{list(self.shape)} of {str(self.dtype).removeprefix('torch.')}"


def tensor_specs(state: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """Get the shape and dtype of each tensor of a state."""
    return {name: TensorSpec(tuple(value.shape), value.dtype) for name, value in state.items()}


def upload_error(state: object) -> str:
    """Explain why an object is not a valid upload; an empty string if it is."""
    if not isinstance(state, dict):
        return f"uploads a {type(state).__name__}, not a dict of tensors by name"
    for name, value in state.items():
        if not isinstance(value, Tensor):
            return f"uploads {name!r} as a {type(value).__name__}, not a tensor"
        # Sparse and meta tensors can't be stored as plain bytes in a file or message.
        if value.layout != torch.strided or value.is_meta:
            return f"uploads {name!r} as a sparse or meta tensor"
    return ""


def update_error(
    update: ClientUpdate, expected: Mapping[str, TensorSpec], shared: State, max_norm: float | None = None
) -> str:
    """Explain why an update can't be combined with others; an empty string if it can.

    ``expected`` describes the tensors of the phase's upload; ``shared`` are the tensors that clients started from.
    ``max_norm`` is the largest allowed :func:`update_norm`, above 0; None for no limit.
    """
    specs = tensor_specs(update.state)
    for name, spec in expected.items():
        if name not in specs:
            return f"uploads no {name!r}"
        if specs[name] != spec:
            return f"uploads {name!r} as {specs[name]}, not {spec}"
    if unknown := sorted(specs.keys() - expected.keys()):
        return f"uploads {unknown[0]!r}, which the phase does not send"
    # An untrusted weight: True, NaN or a negative number would spoil the whole average.
    if type(update.num_examples) is not int or update.num_examples <= 0:
        return f"reports {update.num_examples!r} training images"
    # The slowest check comes last.
    if not is_finite(update.state):
        return NOT_FINITE
    if max_norm is None:
        return ""
    norm = update_norm(update.state, shared)
    return f"moved by {norm:.4g}, more than max_update_norm of {max_norm:g}" if norm > max_norm else ""


def update_norm(upload: State, shared: State) -> float:
    """Compute the Euclidean norm of an upload minus the shared tensors, without the tensors of add-ons.

    If the server stores a tensor in another shape, the norm includes the uploaded tensor itself.
    """
    norms: list[float] = []
    for name, value in upload.items():
        if name.startswith(f"{ADD_ON}/"):
            continue
        start = shared.get(name)
        # In float64, because squares of float32 numbers may overflow.
        moved = value.double()
        if start is not None and start.shape == value.shape:
            moved = moved - start.double()
        norms.append(torch.linalg.vector_norm(moved).item())
    return math.hypot(*norms)
