"""Reproducible randomness that does not depend on earlier draws."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(*where: int) -> int:
    """Derive a seed in [0, 2^63) from integers such as (seed, round, phase, client).

    Draws with separate seeds do not depend on the order of clients, or on interruptions of a run.

    >>> derive_seed(0, 1, 2) == derive_seed(0, 1, 2), derive_seed(0, 1, 2) == derive_seed(0, 2, 1)
    (True, False)
    """
    # A hash, because sums or products would coincide for neighbouring rounds and clients.
    return int(np.random.SeedSequence(where).generate_state(1, np.uint64)[0]) >> 1


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restore all global random generators after the block."""
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
    """Seed all global random generators: PyTorch's on every device in use, NumPy's and Python's."""
    for generator in _generators():
        generator.manual_seed(seed)
    # Augmentations also draw from Python's and NumPy's generators.
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _generators() -> list[torch.Generator]:
    # Accessing CUDA's generators would initialize CUDA.
    cuda = list(torch.cuda.default_generators) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.default_generator, *cuda]
