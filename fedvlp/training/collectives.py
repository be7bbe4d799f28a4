"""Several processes: who trains which clients, and how all get to know what was sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed
from lightning import Fabric
from torch import Tensor

from fedvlp.core.state import ClientUpdate, State, detached
from fedvlp.runs.client_store import Kept

PIECE = 1 << 28
Outline = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


@dataclass(frozen=True)
class LocalResult:
    """What one client's local training left.

    Attributes:
        update: what it sends.
        kept: what stays on it, or the file's name.
        memory: what its optimizer goes on from, or the file's name; empty where it starts anew.
        is_finite: whether no number in all of these is NaN or infinite.
    """

    update: ClientUpdate
    kept: Kept
    memory: Kept
    is_finite: bool


Letter = tuple[LocalResult, list[Outline | str]]


def gathered(fabric: Fabric, results: list[LocalResult]) -> list[LocalResult]:
    """Returns all processes' results, sorted by client id; tensors travel as they are, without pickle."""
    if fabric.world_size > 1:
        known: dict[Outline, Outline] = {}
        letters: list[Any] = [None] * fabric.world_size
        torch.distributed.all_gather_object(letters, [_letter(result, known) for result in results])
        parts = [_exchanged(fabric, rank, each, results) for rank, each in enumerate(letters)]
        results = [result for part in parts for result in part]
    return sorted(results, key=lambda result: result.update.client.id)


def _letter(result: LocalResult, known: dict[Outline, Outline]) -> Letter:
    """Returns all of a result but the numbers in its tensors, and how these are called and shaped."""
    states = (result.update.state, result.kept, result.memory)
    outlines = [each if isinstance(each, str) else _outline(each) for each in states]
    shared = [each if isinstance(each, str) else known.setdefault(each, each) for each in outlines]
    return replace(result, update=replace(result.update, state={}), kept="", memory=""), shared


def _exchanged(fabric: Fabric, rank: int, letters: list[Letter], own: list[LocalResult]) -> list[LocalResult]:
    """Returns the results of the process of this rank, to which they belong or from which they are received."""
    outlines = [outline for _, three in letters for outline in three if not isinstance(outline, str)]
    buffer = torch.empty(sum(map(_num_bytes, outlines)), dtype=torch.uint8)
    states = _views(buffer, outlines)
    if rank == fabric.global_rank:
        for result in own:
            for state in (result.update.state, result.kept, result.memory):
                if not isinstance(state, str):
                    for name, place in next(states).items():
                        place.copy_(state[name])
    _broadcast(fabric, buffer, rank)
    if rank == fabric.global_rank:
        return own
    found = [[each if isinstance(each, str) else next(states) for each in three] for _, three in letters]
    return [_opened(result, three) for (result, _), three in zip(letters, found, strict=True)]


def _opened(result: LocalResult, states: Sequence[Any]) -> LocalResult:
    """Returns a received result with its tensors; those that outlive the phase do not hold the others' memory."""
    upload, *stays = states
    kept, memory = (each if isinstance(each, str) else detached(each) for each in stays)
    return replace(result, update=replace(result.update, state=upload), kept=kept, memory=memory)


def _broadcast(fabric: Fabric, buffer: Tensor, rank: int) -> None:
    """Sends one process's bytes to all others, over the devices where processes can talk in no other way."""
    over_device = torch.distributed.get_backend() == "nccl"
    for start in range(0, len(buffer), PIECE):
        piece = buffer[start : start + PIECE]
        moved = piece.to(fabric.device) if over_device else piece
        torch.distributed.broadcast(moved, rank)
        if over_device:
            piece.copy_(moved)


def _outline(state: State) -> Outline:
    """Returns names, types and shapes."""
    return tuple((name, value.dtype, tuple(value.shape)) for name, value in state.items())


def _views(buffer: Tensor, outlines: Iterable[Outline]) -> Iterator[State]:
    """Yields the states that lie one after another in a buffer."""
    start = 0
    for outline in outlines:
        state: State = {}
        for name, dtype, shape in outline:
            end = start + math.prod(shape) * dtype.itemsize
            state[name] = buffer[start:end].view(dtype).view(shape)
            start = _aligned(end)
        yield state


def _num_bytes(outline: Outline) -> int:
    """Returns how much of a buffer a state takes."""
    return sum(_aligned(math.prod(shape) * dtype.itemsize) for _, dtype, shape in outline)


def _aligned(position: int) -> int:
    """Returns the next place where a tensor of any type may begin."""
    return -(-position // 64) * 64
