"""Randomness that depends on where it is used, and on nothing that ran before."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(*where: int) -> int:
    """Return a seed in [0, 2^63) for a place such as (seed, round, phase, client).

    Draws that have seeds of their own depend neither on the order of the clients nor on where a run was interrupted.

    >>> derive_seed(0, 1, 2) == derive_seed(0, 1, 2), derive_seed(0, 1, 2) == derive_seed(0, 2, 1)
    (True, False)
    """
    # A hash of all numbers: seeds that are sums or products would coincide for neighbouring rounds and clients.
    return int(np.random.SeedSequence(where).generate_state(1, np.uint64)[0]) >> 1


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restore all global generators after the block, in which they may be seeded as often as is needed."""
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
    """Seed all global generators: PyTorch's on every device in use, NumPy's and Python's."""
    for generator in _generators():
        generator.manual_seed(seed)
    # Augmentations draw from Python's and NumPy's generators as well.
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _generators() -> list[torch.Generator]:
    # To ask for CUDA's generators would start CUDA.
    cuda = list(torch.cuda.default_generators) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.default_generator, *cuda]
