"""Batches that are decoded in threads are those of a loader, in order, and errors come where the image is."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from fedvlp.data.loading.ahead import batches_ahead
from fedvlp.data.loading.loaders import ImageDataset, image_loader


class Counting:
    """Images that are numbers; some cannot be read."""

    names = ()

    def __init__(self, count, broken=()):
        self.labels = np.arange(count) % 3
        self.broken = broken
        self.readers = set()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        self.readers.add(threading.current_thread())
        if row in self.broken:
            raise OSError(f"image {row} is broken")
        return float(row)

    def fingerprint(self, rows):
        return ""


def dataset(images):
    return ImageDataset([(images, np.arange(len(images)))], lambda value: torch.full((3, 2, 2), value))


@pytest.mark.parametrize("count", [0, 1, 5, 6, 20])
def test_batches_are_those_of_a_loader(count):
    images = Counting(count)
    found = list(batches_ahead(dataset(images), 3))
    plain = list(image_loader(dataset(Counting(count)), 3)) if count else []
    assert len(found) == len(plain)
    for mine, same in zip(found, plain, strict=True):
        assert torch.equal(mine[0], same[0])
        assert torch.equal(mine[1], same[1])
    assert threading.current_thread() not in images.readers


def test_no_more_than_a_few_batches_are_held():
    images = Counting(1000)
    batches = batches_ahead(dataset(images), 4)
    next(batches)
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decoding")]


def test_an_error_comes_with_its_batch():
    batches = batches_ahead(dataset(Counting(9, broken=[4])), 3)
    assert next(batches)[0][:, 0, 0, 0].tolist() == [0, 1, 2]
    with pytest.raises(OSError, match="image 4 is broken"):
        next(batches)


def test_threads_of_pytorch_stay_as_they_are():
    before = torch.get_num_threads()
    list(batches_ahead(dataset(Counting(9)), 3))
    assert torch.get_num_threads() == before
