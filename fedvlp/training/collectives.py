"""How the processes of a run tell each other what their clients sent and kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning import Fabric
from torch import Tensor

from fedvlp.core.state import State, detached
from fedvlp.runs.client_store import StoredState
from fedvlp.training.client import ClientResult
from fedvlp.training.several_processes import SeveralProcesses

MOST_BYTES = 1 << 28
"""Bytes that are broadcast in one piece."""

ALIGNMENT = 64
"""Tensors begin at multiples of so many bytes, as any type may."""

TensorSpecs = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
"""Name, type and shape of each tensor of a state."""


@dataclass(frozen=True)
class Envelope:
    """All of a result but the numbers in its tensors, which follow as bytes.

    Attributes:
        result: the result with empty states.
        contents: of the upload, the personal and the optimizer state: specs, or the name of the file that holds it.
    """

    result: ClientResult
    contents: tuple[TensorSpecs | str, ...]


def gathered(fabric: Fabric, results: list[ClientResult]) -> list[ClientResult]:
    """Returns all processes' results, sorted by client id; tensors travel as bytes, without pickle."""
    processes = fabric.strategy
    if isinstance(processes, SeveralProcesses):
        known: dict[TensorSpecs, TensorSpecs] = {}
        by_rank = processes.gather([_sealed(result, known) for result in results])
        everyone: list[ClientResult] = []
        for rank, envelopes in enumerate(by_rank):
            everyone += _exchanged(processes, rank, envelopes, results)
        results = everyone
    return sorted(results, key=lambda result: result.update.client.id)


def _sealed(result: ClientResult, known: dict[TensorSpecs, TensorSpecs]) -> Envelope:
    """Returns a result's envelope; equal specs are one object, so that they are sent once for all clients."""
    contents: list[TensorSpecs | str] = []
    for state in _states(result):
        if isinstance(state, str):
            contents.append(state)
            continue
        specs = tuple((name, value.dtype, tuple(value.shape)) for name, value in state.items())
        contents.append(known.setdefault(specs, specs))
    empty = replace(result, update=replace(result.update, state={}), personal="", optimizer_state="")
    return Envelope(empty, tuple(contents))


def _states(result: ClientResult) -> tuple[StoredState, StoredState, StoredState]:
    return result.update.state, result.personal, result.optimizer_state


def _exchanged(
    processes: SeveralProcesses, rank: int, envelopes: Sequence[Envelope], own: Sequence[ClientResult]
) -> list[ClientResult]:
    """Returns the results of the process of this rank: its own there, received ones elsewhere."""
    is_sender = rank == processes.global_rank
    all_specs: list[TensorSpecs] = []
    for envelope in envelopes:
        all_specs += [specs for specs in envelope.contents if not isinstance(specs, str)]
    buffer = torch.empty(sum(_num_bytes(specs) for specs in all_specs), dtype=torch.uint8)
    views = _views(buffer, all_specs)
    if is_sender:
        for result in own:
            _fill(result, views)
    for start in range(0, len(buffer), MOST_BYTES):
        processes.broadcast_bytes(buffer[start : start + MOST_BYTES], rank)
    return list(own) if is_sender else [_opened(envelope, views) for envelope in envelopes]


def _fill(result: ClientResult, views: Iterator[State]) -> None:
    """Copies the tensors of a result into their places."""
    for state in _states(result):
        if not isinstance(state, str):
            for name, place in next(views).items():
                place.copy_(state[name])


def _opened(envelope: Envelope, views: Iterator[State]) -> ClientResult:
    """Returns a received result with its tensors."""
    states: list[Any] = [specs if isinstance(specs, str) else next(views) for specs in envelope.contents]
    # What outlives the phase is copied, so that it does not hold the memory of all that was received.
    personal = states[1] if isinstance(states[1], str) else detached(states[1])
    optimizer_state = states[2] if isinstance(states[2], str) else detached(states[2])
    update = replace(envelope.result.update, state=states[0])
    return replace(envelope.result, update=update, personal=personal, optimizer_state=optimizer_state)


def _views(buffer: Tensor, all_specs: Sequence[TensorSpecs]) -> Iterator[State]:
    """Yields the states that lie one after another in a buffer."""
    start = 0
    for specs in all_specs:
        state: State = {}
        for name, dtype, shape in specs:
            end = start + math.prod(shape) * dtype.itemsize
            state[name] = buffer[start:end].view(dtype).view(shape)
            start = _aligned(end)
        yield state


def _num_bytes(specs: TensorSpecs) -> int:
    return sum(_aligned(math.prod(shape) * dtype.itemsize) for _, dtype, shape in specs)


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT
