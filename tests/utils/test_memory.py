"""Freed memory that is used again, seen by the pages that the system has to give."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from fedvlp.utils import memory as heap
from fedvlp.utils.memory import freed_memory_kept, old_objects_kept

PROGRAM = """
import ctypes, resource
from fedvlp.utils.memory import freed_memory_kept

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def pages_given():  # for 256 MB that are written and freed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    place = library.malloc(2**28)
    library.memset(place, 1, 2**28)
    library.free(place)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident_pages():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

print(pages_given(), resident_pages())
with freed_memory_kept():
    print(pages_given(), resident_pages())
    print(pages_given(), resident_pages())
print(pages_given(), resident_pages())
"""


@pytest.mark.skipif(heap._glibc() is None, reason="the C library is not glibc")
def test_freed_memory_is_used_again_and_goes_back_at_the_end():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    rows = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    given = dict(zip(["before", "first", "second", "after"], (row[0] for row in rows), strict=True))
    resident = dict(zip(given, (row[1] for row in rows), strict=True))
    assert given["second"] < given["before"] / 10  # its pages are there already
    assert resident["second"] == pytest.approx(resident["first"], abs=1000)
    assert resident["first"] - resident["before"] > 60_000
    assert resident["after"] == pytest.approx(resident["before"], abs=1000)
    assert given["after"] > given["before"] / 10


@pytest.fixture
def settings(monkeypatch):
    """What the C library is told, in place of telling it."""
    told = []
    monkeypatch.setattr(heap, "_set", lambda library, options: told.append(options))
    return told


@pytest.mark.skipif(heap._glibc() is None, reason="the C library is not glibc")
def test_it_ends_after_an_error(settings):
    with pytest.raises(ZeroDivisionError), freed_memory_kept():
        1 / 0  # noqa: B018
    begin, end = settings
    assert begin[heap._MMAP_MAX] == 0 < end[heap._MMAP_MAX]
    assert begin[heap._TRIM_THRESHOLD] > end[heap._TRIM_THRESHOLD]


def test_other_systems_are_left_alone(settings, monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    with freed_memory_kept():
        pass
    assert not settings


@pytest.fixture
def nothing_frozen(monkeypatch):
    """Lets the collector see what the whole session of tests keeps from it."""
    monkeypatch.setattr(heap, "gc", gc)
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_the_collector_sees_only_new_objects():
    old = [[]]
    with old_objects_kept():
        new = [[]]
        seen = {id(each) for each in gc.get_objects()}
        assert id(new) in seen
        assert id(old) not in seen
    assert id(old) in {id(each) for each in gc.get_objects()}


@pytest.mark.usefixtures("nothing_frozen")
def test_objects_that_were_frozen_before_stay_frozen():
    gc.freeze()
    with old_objects_kept():
        pass
    assert gc.get_freeze_count()
