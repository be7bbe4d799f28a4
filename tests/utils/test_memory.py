"""Reuse of freed memory, measured by new memory pages of the process."""

import subprocess
import sys

import pytest

from fedvlp.utils.memory import reuse_freed_memory

# Run in a separate process, because earlier allocations of a test session would change the result.
PROGRAM = """
import ctypes, resource
from fedvlp.utils.memory import reuse_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def new_pages():  # for 64 MB that are written and freed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(2**26)
    libc.memset(block, 1, 2**26)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(new_pages())
with reuse_freed_memory():
    new_pages()
    print(new_pages())
print(new_pages())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is on Linux")
def test_freed_memory_is_reused_and_returned_at_the_end():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, inside, after = map(int, done.stdout.split())
    assert inside < before / 10
    assert after > before / 2


def test_other_systems_are_not_changed(monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setattr("ctypes.CDLL", None)
    with reuse_freed_memory():
        pass
