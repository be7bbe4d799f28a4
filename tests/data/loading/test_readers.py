"""Processes that read images are killed: once costs nothing but time, twice ends with what to do."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torchvision.transforms.functional import to_tensor

from fedvlp.data import ArrayImages
from fedvlp.data.loading.loaders import ImageDataset, image_loader
from fedvlp.data.loading.readers import _is_of_death
from fedvlp.utils.errors import MachineError
from tests.helpers.data import same
from tests.helpers.toy_federation import Linear, Points, federation, file_callbacks

COUNT = 23


class Deadly:
    """Makes a tensor of an image and a random number; kills the process that is about to make a certain one.

    Args:
        folder: remembers the deaths.
        deaths: how many there are.
    """

    def __init__(self, folder, deaths):
        self.folder = folder
        self.deaths = deaths

    def __call__(self, image):
        pixels = to_tensor(image)
        number = round(float(pixels[0, 0, 0]) * 255)
        known = len(list(self.folder.iterdir()))
        if number == 17 and known < self.deaths and torch.utils.data.get_worker_info() is not None:
            (self.folder / str(known)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return pixels + torch.rand(())


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """PyTorch looks for dead processes every five seconds; here it does so sooner."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.3,))


def loader(folder, deaths, workers=2):
    pixels = np.arange(COUNT, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)
    images = ArrayImages(pixels, [3 * i % 7 for i in range(COUNT)])
    folder.mkdir(exist_ok=True)
    dataset = ImageDataset([(images, np.arange(COUNT))], Deadly(folder, deaths))
    return image_loader(dataset, 4, workers, seed=5)


def two_passes(loader):
    return [*loader, *loader]


def test_batches_go_on_bit_for_bit_when_a_reader_is_killed(tmp_path, caplog):
    expected = two_passes(loader(tmp_path / "none", 0, workers=0))
    with caplog.at_level(logging.WARNING, "fedvlp"):
        found = two_passes(loader(tmp_path / "one", 1))
    assert len(expected) == 12
    assert same(found, expected)
    assert len(list((tmp_path / "one").iterdir())) == 1
    assert caplog.text.count("starting the processes that read images again") == 1


def test_a_second_death_ends_with_what_to_do(tmp_path):
    with pytest.raises(MachineError, match=r"killed twice .* Lower data.num_workers, which is 2\."):
        two_passes(loader(tmp_path / "two", 2))


def test_an_error_of_an_image_is_raised_as_it_is(tmp_path):
    broken = loader(tmp_path / "none", 0)
    broken.dataset.transform = lambda image: [][1]
    with pytest.raises(IndexError, match="out of range"):
        list(broken)


@pytest.mark.parametrize("kind", [EOFError, ConnectionResetError, FileNotFoundError])
def test_a_connection_that_ends_is_of_death_where_a_process_was_killed(kind):
    process = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
    process.start()
    process.kill()
    readers = SimpleNamespace(_workers=[process])
    assert _is_of_death(kind(), readers)
    assert not _is_of_death(kind("Caught an error in DataLoader worker process 0."), readers)
    assert not _is_of_death(ValueError(), readers)
    finished = SimpleNamespace(sentinel=process.sentinel, exitcode=0, join=process.join)
    assert not _is_of_death(kind(), SimpleNamespace(_workers=[finished]))


class DeadReaders(Points):
    """Points of which the second client's are read by processes that are killed, whenever they are started."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def train_dataloader(self, client=None, seed=None):
        if client.id == 1:
            list(loader(self.folder, 99, workers=1))
        return super().train_dataloader(client, seed)


def test_no_client_is_left_out_for_it(tmp_path):
    data = DeadReaders(tmp_path / "deaths")
    with pytest.raises(MachineError, match="killed twice"):
        federation(tmp_path / "runs", **file_callbacks()).fit(Linear(), data)
