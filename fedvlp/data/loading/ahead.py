"""Batches of images that are decoded in threads, while those before them are computed with."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from fedvlp.data.files.images import pillow_is_quiet
from fedvlp.data.loading.loaders import ImageDataset

MOST_THREADS = 8
BATCHES_AHEAD = 2


def batches_ahead(dataset: ImageDataset, batch_size: int, pin_memory: bool = False) -> Iterator[list[Tensor]]:
    """Yields (pixels, labels) in the order of the images, the same as a loader gives; the next ones are under way.

    Args:
        dataset: Images, of which the transform draws nothing.
        batch_size: Images in a batch; the last may be smaller.
        pin_memory: Whether batches lie in pinned memory, from which they are copied to a CUDA device at once.
    """
    waiting: deque[Future[Any]] = deque()
    threads = min(MOST_THREADS, os.cpu_count() or 1)
    with pillow_is_quiet():
        pool = ThreadPoolExecutor(threads, "decoding", initializer=torch.set_num_threads, initargs=(1,))
        try:
            for position in range(len(dataset)):
                waiting.append(pool.submit(dataset.__getitem__, position))
                if len(waiting) == (1 + BATCHES_AHEAD) * batch_size:
                    yield _first(waiting, batch_size, pin_memory)
            while waiting:
                yield _first(waiting, batch_size, pin_memory)
        finally:
            pool.shutdown(cancel_futures=True)


def _first(waiting: deque[Future[Any]], batch_size: int, pin_memory: bool) -> list[Tensor]:
    """Takes the first images as a batch; one that could not be read raises its error here."""
    count = min(batch_size, len(waiting))
    batch: list[Tensor] = default_collate([waiting.popleft().result() for _ in range(count)])
    return [tensor.pin_memory() for tensor in batch] if pin_memory else batch
