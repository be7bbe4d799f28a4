"""What travels between clients and server, what an update must be, and the state of a federation."""

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
# What was measured in one round, by the names of the columns of ``metrics.csv``.
RoundMetrics = dict[str, Any]

# Begins, before a slash, the names of what add-ons exchange beside the method's own tensors.
ADD_ON = "add_on"
NOT_FINITE = "uploads NaN or infinity"
KEEPS_NOT_FINITE = "keeps NaN or infinity"


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
        """The state before the first round, in which what is shared is also deployed."""
        return cls(shared=shared, deployed=dict(shared))

    def updated(self, shared: State, **memory: Tensor) -> ServerState:
        """A new server state in which ``shared`` replaces the tensors of the same names."""
        # What is shared is deployed too; a strategy that deploys an average replaces it afterwards.
        return replace(self, shared=self.shared | shared, deployed=self.deployed | shared, memory=self.memory | memory)

    def scoped(self, group: str, change: Callable[[ServerState], ServerState]) -> ServerState:
        """Apply a change that reads and replaces only the memory under ``group/``, without that prefix."""
        others = {name: value for name, value in self.memory.items() if not name.startswith(f"{group}/")}
        after = change(replace(self, memory=strip_prefix(self.memory, group)))
        return replace(after, memory=others | add_prefix(after.memory, group))


@dataclass(frozen=True)
class CallbackStates:
    """JSON values and tensors of callbacks after a round, by key, and the keys of those that stopped the run."""

    states: Mapping[str, Any] = field(default_factory=dict)
    stopped_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunState:
    """The state of a federation after a round; nothing else is needed to resume it.

    Attributes:
        server: the server's state; ``server.round`` rounds are finished.
        personal: the tensors that stay on each client, by client id.
        history: the metrics of each finished round.
        optimizer_states: what each client's optimizers continue from, and what an add-on kept on it, by client id;
            empty where optimizers start from scratch in each round and no add-on keeps anything.
        callbacks: what callbacks remember.
    """

    server: ServerState
    personal: Mapping[int, State] = field(default_factory=dict)
    history: tuple[RoundMetrics, ...] = ()
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
    """Those of the tensors that are under ``group/``, without that prefix.

    >>> strip_prefix({"3/prompt": torch.zeros(1), "30/prompt": torch.ones(1)}, "3")
    {'prompt': tensor([0.])}
    """
    start = f"{group}/"
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def detached(state: Mapping[str, Tensor]) -> State:
    """Copy a state to the CPU so that later training can't change it."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}


def numel(state: State) -> int:
    """The number of entries in a state, the unit in which papers report communication."""
    return sum(tensor.numel() for tensor in state.values())


def num_bytes(state: State) -> int:
    """The bytes of a state as it would be sent, uncompressed."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def weighted_mean(states: Sequence[State], weights: Sequence[float]) -> State:
    """Average states key by key, sum_k w_k s_k / sum_k w_k, in float32 and in the order given.

    There is at least one state, all have the same names and shapes, and weights are at least 0 and not all 0.

    >>> weighted_mean([{"p": torch.tensor([0.0])}, {"p": torch.tensor([3.0])}], [2, 1])
    {'p': tensor([1.])}
    """
    total = float(sum(weights))
    means: State = {}
    for name, first in states[0].items():
        # In place, so that no tensor is made for each client.
        mean = torch.zeros_like(first, dtype=torch.float32)
        for state, weight in zip(states, weights, strict=True):
            mean.add_(state[name].float(), alpha=weight / total)
        means[name] = mean.to(first.dtype)
    return means


def is_finite(*states: State) -> bool:
    """Whether no tensor of the states holds NaN or infinity."""
    tensors = chain.from_iterable(state.values() for state in states)
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


class TensorSpec(NamedTuple):
    """The shape of a tensor, and the type of its entries."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        """Such as ``[2, 3] of float32``."""
        return f"{list(self.shape)} of {str(self.dtype).removeprefix('torch.')}"


def tensor_specs(state: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """The spec of each tensor of a state."""
    return {name: TensorSpec(tuple(value.shape), value.dtype) for name, value in state.items()}


def upload_error(state: object) -> str:
    """Explain why something can't be sent as a state; an empty string if it can."""
    if not isinstance(state, dict):
        return f"uploads a {type(state).__name__}, not a dict of tensors by name"
    for name, value in state.items():
        if not isinstance(value, Tensor):
            return f"uploads {name!r} as a {type(value).__name__}, not a tensor"
        # Sparse and meta tensors have no bytes that a file or a message could hold.
        if value.layout != torch.strided or value.is_meta:
            return f"uploads {name!r} as a tensor without plain numbers in memory"
    return ""


def update_error(
    update: ClientUpdate, expected: Mapping[str, TensorSpec], shared: State, max_norm: float | None = None
) -> str:
    """Explain why an update can't be combined with others; an empty string if it can.

    ``expected`` are the tensors that the phase uploads, ``shared`` those that clients started from. ``max_norm`` is the
    largest :func:`update_norm`, above 0; None for any.
    """
    if problem := _wrong_tensors(update.state, expected):
        return problem
    # A weight from elsewhere: true, NaN or a negative one would spoil the whole average.
    if type(update.num_examples) is not int or update.num_examples <= 0:
        return f"reports that it trained on {update.num_examples!r} images"
    # The slowest look comes last, and only at what has the right form.
    if not is_finite(update.state):
        return NOT_FINITE
    if max_norm is None:
        return ""
    norm = update_norm(update.state, shared)
    return f"has moved by {norm:.4g}, more than max_update_norm of {max_norm:g}" if norm > max_norm else ""


def update_norm(upload: State, shared: State) -> float:
    """Compute the Euclidean norm of the difference to what is shared, over all tensors but those of add-ons.

    A tensor that the server keeps in another shape counts itself.
    """
    norms: list[float] = []
    for name, value in upload.items():
        if name.startswith(f"{ADD_ON}/"):
            continue
        start = shared.get(name)
        # In float64, where the square of no float32 overflows.
        moved = value.double()
        if start is not None and start.shape == value.shape:
            moved = moved - start.double()
        norms.append(torch.linalg.vector_norm(moved).item())
    return math.hypot(*norms)


def _wrong_tensors(state: State, expected: Mapping[str, TensorSpec]) -> str:
    specs = tensor_specs(state)
    for name, spec in expected.items():
        if name not in specs:
            return f"uploads no {name!r}"
        if specs[name] != spec:
            return f"uploads {name!r} as {specs[name]}, not {spec}"
    unknown = sorted(specs.keys() - expected.keys())
    return f"uploads {unknown[0]!r}, which the phase does not send" if unknown else ""
