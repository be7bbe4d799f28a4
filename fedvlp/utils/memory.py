"""Memory during training: what a step frees, the next one needs again."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Names of mallopt(3).
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_MMAP_MAX = -4


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let glibc use the block's freed memory again at once, and give it back to the system at the end.

    By default each large tensor is taken from the system and given back, and the system clears every page again: a
    quarter to a third of a step whose graph has gigabytes. Another C library is left as it is.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "gnu_get_libc_version"):
        yield
        return
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        # Where glibc's own adaptive thresholds end.
        libc.mallopt(M_MMAP_MAX, 65_536)
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)
        libc.mallopt(M_TRIM_THRESHOLD, 2**26)
        libc.malloc_trim(0)
