"""Freed memory that is used again, seen by the pages that the system has to give."""

from __future__ import annotations

import gc
import resource

import pytest
import torch

from fedvlp import heap
from fedvlp.heap import freed_memory_kept, old_objects_kept

NUMBERS = 64 * 2**20  # 256 MB


def pages_given():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(NUMBERS)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident_pages():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])


needs_glibc = pytest.mark.skipif(heap._glibc() is None, reason="the C library is not glibc")


@needs_glibc
def test_large_tensors_get_the_same_pages_again():
    anew = pages_given()
    with freed_memory_kept():
        again = [pages_given() for _ in range(5)]  # small tensors may take a place at first
    assert min(again) < anew / 100


@needs_glibc
def test_the_memory_goes_back_at_the_end():
    torch.ones(NUMBERS)
    before = resident_pages()
    with freed_memory_kept():
        torch.ones(NUMBERS)
        assert resident_pages() > before + 50_000
    assert resident_pages() < before + 5_000
    assert pages_given() > 50


def test_it_ends_after_an_error():
    with pytest.raises(ZeroDivisionError), freed_memory_kept():
        1 / 0  # noqa: B018
    assert torch.ones(3).sum() == 3


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    assert heap._glibc() is None
    with freed_memory_kept():
        assert torch.ones(3).sum() == 3


def test_the_collector_sees_only_new_objects():
    old = [[]]
    with old_objects_kept():
        new = [[]]
        seen = {id(each) for each in gc.get_objects()}
        assert id(new) in seen
        assert id(old) not in seen
    assert id(old) in {id(each) for each in gc.get_objects()}


def test_objects_that_were_frozen_before_stay_frozen():
    gc.freeze()
    try:
        with old_objects_kept():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
