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

    >>> derive_seed(0, 1, 2) == derive_seed(0, 1, 2), derive_seed(0, 1, 2) == derive_seed(0, 2, 1)
    (True, False)
    """
    return int(np.random.SeedSequence(where).generate_state(1, np.uint64)[0]) >> 1


def derive_seeds(where: Sequence[int], last: Sequence[int]) -> list[int]:
    """Returns ``[derive_seed(*where, each) for each in last]``, all at once; the last numbers are in [0, 2^32).

    >>> derive_seeds((0, 1), [2, 7]) == [derive_seed(0, 1, 2), derive_seed(0, 1, 7)]
    True
    """
    fixed = [word for number in where for word in _words(number)]
    entropy = [*(np.full(len(last), word, np.uint32) for word in fixed), np.asarray(last, np.uint32)]
    pool = _pool(entropy + [np.zeros(len(last), np.uint32)] * (4 - len(entropy)))
    hashed = _Hash(0x8B51F9DD, 0x58F38DED)
    low, high = (hashed(word).astype(np.uint64) for word in pool[:2])
    return [int(seed) for seed in (high << np.uint64(32) | low) >> np.uint64(1)]


def _words(number: int) -> list[int]:
    """Returns a number's 32-bit words, the lowest first; zero has one."""
    return [number >> shift & 0xFFFFFFFF for shift in range(0, max(number.bit_length(), 1), 32)]


def _pool(entropy: Sequence[Words]) -> list[Words]:
    """Mixes at least four words into four, as NumPy's ``SeedSequence`` does."""
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
        self.constant, self.factor = constant, factor

    def __call__(self, word: Words) -> Words:
        """Returns the hash of each word."""
        word = word ^ np.uint32(self.constant)
        self.constant = self.constant * self.factor & 0xFFFFFFFF
        word = word * np.uint32(self.constant)
        return _folded(word)


def _mixed(one: Words, other: Words) -> Words:
    """Returns two words mixed into one."""
    word = np.uint32(0xCA01F9DD) * one - np.uint32(0x4973F715) * other
    return _folded(word)


def _folded(word: Words) -> Words:
    """Returns a word with its upper half mixed into the lower."""
    folded: Words = word ^ word >> np.uint32(16)
    return folded


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restores all global generators after the block, in which they may be seeded as often as is needed."""
    python, numpy, states = random.getstate(), np.random.get_state(), [each.get_state() for each in _generators()]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for generator, state in zip(_generators(), states, strict=False):
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
