"""Randomness that depends on where it is used, and on nothing that ran before."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
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
    return int(np.random.SeedSequence(where).generate_state(1, np.uint64)[0]) >> 1


# A SeedSequence for each client takes a fifth of the loop's own time at a thousand clients. NumPy has none for many
# seeds at once, so its published hash is written here over arrays; the results are its own, number by number.


def derive_seeds(where: Sequence[int], last: Sequence[int]) -> list[int]:
    """Returns ``[derive_seed(*where, each) for each in last]``, all at once; the last numbers are in [0, 2^32).

    >>> derive_seeds((0, 1), [2, 7]) == [derive_seed(0, 1, 2), derive_seed(0, 1, 7)]
    True
    """
    entropy: list[Words] = []
    for number in where:
        entropy += [np.full(len(last), word, np.uint32) for word in _words(number)]
    entropy.append(np.asarray(last, np.uint32))
    while len(entropy) < 4:
        entropy.append(np.zeros(len(last), np.uint32))
    pool = _pool(entropy)
    hashed = _Hash(0x8B51F9DD, 0x58F38DED)
    low = hashed(pool[0]).tolist()
    high = hashed(pool[1]).tolist()
    return [(upper << 32 | lower) >> 1 for upper, lower in zip(high, low, strict=True)]


def _words(number: int) -> list[int]:
    """Returns a number's 32-bit words, the lowest first; zero has one."""
    return [number >> shift & 0xFFFFFFFF for shift in range(0, max(number.bit_length(), 1), 32)]


def _pool(entropy: Sequence[Words]) -> list[Words]:
    """Mixes at least four words into four, as ``SeedSequence`` does."""
    hashed = _Hash(0x43B0D7E5, 0x931E8875)
    pool = [hashed(word) for word in entropy[:4]]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = _mixed(pool[target], hashed(pool[source]))
    for word in entropy[4:]:
        pool = [_mixed(old, hashed(word)) for old in pool]
    return pool


class _Hash:
    """The hash of ``SeedSequence``, whose constant changes from call to call."""

    def __init__(self, constant: int, factor: int) -> None:
        self.constant = constant
        self.factor = factor

    def __call__(self, word: Words) -> Words:
        """Returns the hash of each word."""
        word = word ^ np.uint32(self.constant)
        self.constant = self.constant * self.factor & 0xFFFFFFFF
        return _folded(word * np.uint32(self.constant))


def _mixed(one: Words, other: Words) -> Words:
    """Returns two words mixed into one."""
    return _folded(np.uint32(0xCA01F9DD) * one - np.uint32(0x4973F715) * other)


def _folded(word: Words) -> Words:
    """Returns a word with its upper half mixed into the lower."""
    folded: Words = word ^ word >> np.uint32(16)
    return folded


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
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _generators() -> list[torch.Generator]:
    """Returns PyTorch's global generators, those of CUDA devices if they are in use."""
    cuda = list(torch.cuda.default_generators) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.default_generator, *cuda]
