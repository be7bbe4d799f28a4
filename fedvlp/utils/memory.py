"""Memory during training: what is freed is soon needed again, and what is old stays."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Names of mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_MMAP_MAX = -4


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Lets the block's freed memory be used again at once; it goes back to the system at the end.

    By default glibc takes large tensors from the system and gives them back each time, and the system clears each page
    that it gives: with graphs of gigabytes, as of 345 classes under a prompt for each image, a fifth of a step.
    Other C libraries are left as they are.
    """
    library = _glibc()
    if library is None:
        yield
        return
    _set(library, {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1})
    try:
        yield
    finally:
        _set(library, {_MMAP_MAX: 65536, _MMAP_THRESHOLD: 1 << 25, _TRIM_THRESHOLD: 1 << 26})  # where glibc's own end
        library.malloc_trim(0)


@contextmanager
def old_objects_kept() -> Iterator[None]:
    """Lets Python's collector look only at objects that are made in the block.

    It would walk through all of PyTorch's and Lightning's again whenever thousands of clients' results have come.
    """
    if gc.get_freeze_count():  # somebody else's decision
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _glibc() -> ctypes.CDLL | None:
    """Returns the C library if it is glibc."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


def _set(library: ctypes.CDLL, options: dict[int, int]) -> None:
    """Sets what `malloc` does."""
    for option, value in options.items():
        library.mallopt(option, value)
