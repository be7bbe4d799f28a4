"""Freed memory that is used again, seen by the pages that the system has to give."""

import subprocess
import sys

import pytest

from fedvlp.utils.memory import reuse_freed_memory

# A process of its own: what a test session has allocated before would decide what is given back.
PROGRAM = """
import ctypes, resource
from fedvlp.utils.memory import reuse_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def pages_given():  # for 256 MB that are written and freed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    place = libc.malloc(2**28)
    libc.memset(place, 1, 2**28)
    libc.free(place)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(pages_given())
with reuse_freed_memory():
    pages_given()
    print(pages_given())
print(pages_given())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is on Linux")
def test_freed_memory_is_used_again_and_goes_back_at_the_end():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, inside, after = map(int, done.stdout.split())
    assert inside < before / 10
    assert after > before / 2


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setattr("ctypes.CDLL", None)
    with reuse_freed_memory():
        pass
