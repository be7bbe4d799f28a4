"""Batches of images, or of what the frozen parts of a module computed from them.

Orders and augmentations are drawn in the main process, so batches are the same for every number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from tqdm import tqdm

from fedvlp.core.protocols import DOMAIN, Inputs
from fedvlp.data.files.images import Images, Indices, Transform

ImageLoader = DataLoader[tuple[Any, int]]
"""Batches of (pixels, labels) as PyTorch makes them, on the CPU; in place of pixels perhaps a dict that has them."""
Prepare = Callable[[Float[Tensor, "B 3 V V"]], dict[str, Tensor]]


class Shuffle(Sampler[tuple[int, int]]):
    """Draws an order of images, and a seed for each image's augmentation, for one pass after another.

    Args:
        count: number of images.
        seed: all that the draws depend on; the global generator is neither read nor moved.
    """

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self) -> tuple[Int[Tensor, " images"], Int[Tensor, " images"]]:
        """Returns the order of the next pass, and the seed of the image at each position."""
        # Drawn in the main process, so that batches do not depend on the number of workers.
        order = torch.randperm(self.count, generator=self.generator)
        return order, torch.randint(2**62, (self.count,), generator=self.generator)

    def __len__(self) -> int:
        """Counts the images."""
        return self.count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yields (position, seed of the augmentation)."""
        order, seeds = self.draw()
        return iter(list(zip(order.tolist(), seeds[order].tolist(), strict=True)))


class ImageDataset(Dataset[tuple[Any, int]]):
    """Transformed images with their labels.

    Args:
        selected: images of a domain and the rows of it to take, one domain after another.
        transform: makes a tensor [3, V, V] of an image.
        domains: the number of each selection's domain, if an item shall be a dict of ``images`` and ``domain``.
    """

    def __init__(
        self,
        selected: Sequence[tuple[Images, Indices]],
        transform: Transform,
        domains: Sequence[int] | None = None,
    ) -> None:
        self.images = [images for images, _ in selected]
        self.domain = np.repeat(np.arange(len(selected)), [len(rows) for _, rows in selected])
        self.row = np.concatenate([rows for _, rows in selected])
        self.transform = transform
        self.domains = domains

    def __len__(self) -> int:
        """Counts the images."""
        return len(self.row)

    def __getitem__(self, item: int | tuple[int, int]) -> tuple[Any, int]:
        """Returns pixels and label; given (position, seed), a random transform draws from that seed alone."""
        position = item[0] if isinstance(item, tuple) else item
        images = self.images[self.domain[position]]
        row = int(self.row[position])
        pixels = self._transformed(images[row], item)
        label = int(images.labels[row])
        if self.domains is None:
            return pixels, label
        return {"images": pixels, DOMAIN: self.domains[self.domain[position]]}, label

    def _transformed(self, image: Any, item: int | tuple[int, int]) -> Tensor:
        if not isinstance(item, tuple):
            return self.transform(image)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(item[1])
            return self.transform(image)


def image_loader(
    dataset: ImageDataset,
    batch_size: int,
    num_workers: int = 0,
    seed: int | None = None,
    device: torch.device | None = None,
) -> ImageLoader:
    """Returns a PyTorch loader of (pixels, labels): shuffled by ``seed``, or in order where there is none.

    Batches for a CUDA ``device`` lie in pinned memory, from which they are copied while others are computed.
    """
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=None if seed is None else Shuffle(len(dataset), seed),
        num_workers=num_workers,
        pin_memory=device is not None and device.type == "cuda",
        generator=torch.Generator().manual_seed(0),  # else each pass would draw from the global generator
    )


class DeviceLoader:
    """Moves the batches of a loader to a device.

    Args:
        loader: gives (pixels, labels).
        device: where they are wanted.
    """

    def __init__(self, loader: ImageLoader, device: torch.device) -> None:
        self.loader = loader
        self.device = device

    def __len__(self) -> int:
        """Counts the batches."""
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Yields pixels [B, 3, V, V], or a dict that has them, and labels [B]."""
        for inputs, labels in self.loader:
            moved = {name: self._moved(value) for name, value in inputs.items()} if isinstance(inputs, dict) else None
            yield moved or self._moved(inputs), self._moved(labels)

    def _moved(self, value: Tensor) -> Tensor:
        return value.to(self.device, non_blocking=self.loader.pin_memory)


class PreparedLoader:
    """Batches cut from tensors that hold whole domains; nothing is read, decoded or encoded.

    Args:
        tensors: gives each domain's tensors, [images, ...] by name, when the first batch is asked for.
        rows: which of each domain's rows to take.
        labels: class of each row, one domain after another.
        batch_size: rows in a batch; the last may be smaller.
        seed: of the order; None keeps the order of ``rows``.
        domains: the number of each domain, if batches shall hold it as ``domain`` [B].
    """

    def __init__(
        self,
        tensors: Callable[[], Sequence[dict[str, Tensor]]],
        rows: Sequence[Int[Tensor, " _"]],
        labels: Int[Tensor, " images"],
        batch_size: int,
        seed: int | None = None,
        domains: Sequence[int] | None = None,
    ) -> None:
        self.tensors = tensors
        self.labels = labels
        self.batch_size = batch_size
        self.rows = torch.cat(list(rows))
        counts = torch.tensor([len(domain_rows) for domain_rows in rows])
        self.domain = torch.repeat_interleave(counts).to(self.rows.device)
        self.number = None if domains is None else torch.tensor(domains, device=self.rows.device)[self.domain]
        self.shuffle = None if seed is None else Shuffle(len(self.rows), seed)

    def __len__(self) -> int:
        """Counts the batches."""
        return -(-len(self.rows) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Yields tensors [B, ...] by name and labels [B], on the device of the tensors."""
        tensors = self.tensors()
        order = torch.arange(len(self.rows)) if self.shuffle is None else self.shuffle.draw()[0]
        for positions in torch.split(order.to(self.rows.device), self.batch_size):
            batch = self._gather(tensors, positions)
            if self.number is not None:
                batch[DOMAIN] = self.number[positions]
            yield batch, self.labels[positions]

    def _gather(self, tensors: Sequence[dict[str, Tensor]], positions: Int[Tensor, " B"]) -> dict[str, Tensor]:
        """Returns the tensors [B, ...] of a batch, from whichever domain each of its images is."""
        rows = self.rows[positions]
        if len(tensors) == 1:
            return {name: tensor[rows] for name, tensor in tensors[0].items()}
        domain = self.domain[positions]
        # Each domain is indexed once, which gives the batch sorted by domain; `place` undoes the sorting.
        place = torch.argsort(torch.argsort(domain, stable=True))
        rows_of_domains = [rows[domain == index] for index in range(len(tensors))]
        batch = {}
        for name in tensors[0]:
            pieces = [domain_tensors[name][rows] for domain_tensors, rows in zip(tensors, rows_of_domains, strict=True)]
            batch[name] = torch.cat(pieces)[place]
        return batch


def encode(
    dataset: ImageDataset,
    prepare: Prepare,
    device: torch.device,
    num_workers: int = 0,
    description: str = "encoding",
    batch_size: int = 64,
) -> dict[str, Tensor]:
    """Returns what ``prepare`` gives for these images, [images, ...] by name, on ``device``.

    Batches are cut in the order of the images and have their own size, so that the values do not depend on how clients
    or evaluations are batched.

    Raises:
        ValueError: if ``prepare`` does not give one row an image.
    """
    encoded: dict[str, Tensor] = {}
    start = 0
    batches = image_loader(dataset, batch_size, num_workers, device=device)
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
