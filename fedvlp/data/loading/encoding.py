"""Runs images through the frozen parts of a module, once for each image."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from fedvlp.data.loading.ahead import batches_ahead
from fedvlp.data.loading.loaders import ImageDataset, image_loader

Prepare = Callable[[Float[Tensor, "B 3 V V"]], dict[str, Tensor]]


def encode(
    dataset: ImageDataset,
    prepare: Prepare,
    device: torch.device,
    num_workers: int = 0,
    description: str = "encoding",
    batch_size: int = 64,
) -> dict[str, Tensor]:
    """Returns what ``prepare`` gives for these images, [images, ...] by name, on ``device``.

    Batches are cut in the order of the images and have their own size, so that the numbers do not depend on how clients
    or evaluations are batched. Images are read in threads meanwhile, or by ``num_workers`` processes.

    Raises:
        ValueError: if ``prepare`` does not give one row an image.
    """
    encoded: dict[str, Tensor] = {}
    start = 0
    if num_workers:
        batches: Iterable[Any] = image_loader(dataset, batch_size, num_workers, device=device)
    else:
        batches = batches_ahead(dataset, batch_size, pin_memory=device.type == "cuda")
    bar = tqdm(total=len(dataset), desc=description, unit="image", leave=False, disable=None)
    # Tensors made under inference mode could not be trained on.
    with bar, torch.inference_mode(False), torch.no_grad():
        for pixels, _ in batches:
            count = len(pixels)
            for name, value in prepare(pixels.to(device, non_blocking=device.type == "cuda")).items():
                if len(value) != count:
                    raise ValueError(f"Expected `prepare` to give {count} rows of {name!r}; got {len(value)}.")
                # Shapes and types are known from the first batch on.
                if name not in encoded:
                    encoded[name] = torch.empty(len(dataset), *value.shape[1:], dtype=value.dtype, device=device)
                encoded[name][start : start + count] = value
            start += count
            bar.update(count)
    return encoded
