"""Randomness that depends on where it is used, and on nothing that ran before."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

Words = npt.NDArray[np.uint32]


def derive_seed(*where: int) -> int:
    """Returns a seed in [0, 2^63) for a place such as (seed, round, phase, client).

    Draws that have seeds of their own depend neither on the order of the clients nor on where a run was interrupted.

    >>> derive_seed(0, 1, 2) == derive_seed(0, 1, 2), derive_seed(0, 1, 2) == derive_seed(0, 2, 1)
    (True, False)
    """
    # A hash of all numbers: seeds that are sums or products would coincide for neighbouring rounds and clients.
    return int(np.random.SeedSequence(where).generate_state(1, np.uint64)[0]) >> 1


def derive_seeds(where: Sequence[int], last: Sequence[int]) -> list[int]:
    """Returns ``[derive_seed(*where, each) for each in last]``; the last numbers are in [0, 2^32).

    >>> derive_seeds((0, 1), [2, 7]) == [derive_seed(0, 1, 2), derive_seed(0, 1, 7)]
    True
    """
    # One SeedSequence after another takes a third of a round of 10,000 idle clients. NumPy makes none for many seeds
    # at once, so its hash is written here over arrays; names and constants are those of numpy.random.bit_generator.
    columns: list[Words] = []
    for number in where:
        for shift in range(0, max(number.bit_length(), 1), 32):  # a number's 32-bit words, the lowest first
            columns.append(np.full(len(last), number >> shift & 0xFFFFFFFF, np.uint32))
    columns.append(np.asarray(last, np.uint32))
    while len(columns) < 4:
        columns.append(np.zeros(len(last), np.uint32))

    hash_entropy = _hashmix(0x43B0D7E5, 0x931E8875)
    pool = [hash_entropy(column) for column in columns[:4]]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = _mix(pool[target], hash_entropy(pool[source]))
    for column in columns[4:]:
        pool = [_mix(word, hash_entropy(column)) for word in pool]

    hash_output = _hashmix(0x8B51F9DD, 0x58F38DED)
    low = hash_output(pool[0]).tolist()
    high = hash_output(pool[1]).tolist()
    return [(upper << 32 | lower) >> 1 for upper, lower in zip(high, low, strict=True)]


def _hashmix(constant: int, multiplier: int) -> Callable[[Words], Words]:
    """The hash of words, whose constant changes from call to call."""

    def hashed(words: Words) -> Words:
        nonlocal constant
        words = words ^ np.uint32(constant)
        constant = constant * multiplier & 0xFFFFFFFF
        return _xorshift(words * np.uint32(constant))

    return hashed


def _mix(one: Words, other: Words) -> Words:
    return _xorshift(np.uint32(0xCA01F9DD) * one - np.uint32(0x4973F715) * other)


def _xorshift(words: Words) -> Words:
    shifted: Words = words ^ words >> np.uint32(16)
    return shifted


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restores all global generators after the block, in which they may be seeded as often as is needed."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    torch_states = [generator.get_state() for generator in _generators()]
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        for generator, state in zip(_generators(), torch_states, strict=False):
            generator.set_state(state)


def seed_generators(seed: int) -> None:
    """Seeds all global generators: PyTorch's on every device in use, NumPy's and Python's."""
    for generator in _generators():
        generator.manual_seed(seed)
    # Augmentations draw from Python's and NumPy's generators as well.
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _generators() -> list[torch.Generator]:
    # To ask for CUDA's generators would start CUDA.
    cuda = list(torch.cuda.default_generators) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.default_generator, *cuda]
