"""Generated images on disk, and clients without images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from fedvlp.clip import CLIP
from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import Batch, Loader
from fedvlp.core.state import Client


def write_images(root: Path, domains: int, class_names: list[str], images: int, size: int = 256) -> None:
    """Write JPEG files, `root/domain/class/number.jpg`, of smooth colours.

    Args:
        root: The folder to write to.
        domains: Number of domains.
        class_names: The classes, dealt out evenly.
        images: Number of images per domain.
        size: Pixels in height and width.
    """
    generator = np.random.default_rng(0)
    for domain in range(domains):
        for index in range(images):
            folder = root / f"domain {domain}" / class_names[index % len(class_names)]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC).save(folder / f"{index}.jpg")


class IdleMethod(FederatedModule):
    """A method that sends prompts without training, so that a round costs only the loop.

    Args:
        clip: The frozen CLIP.
        shape: Shape of the prompts that are sent.
        kept: Shape of the personal prompts; None for none.
    """

    def __init__(self, clip: CLIP, shape: tuple[int, ...], kept: tuple[int, ...] | None = None) -> None:
        super().__init__(lambda parameters: torch.optim.AdamW(parameters, lr=4e-4))
        self.set_backbone(clip)
        self.prompts = nn.Parameter(torch.zeros(shape))
        if kept is not None:
            self.personal = ("own",)
            self.own = nn.Parameter(torch.zeros(kept))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return a loss; never called, because there are no batches."""
        return self.prompts.square().mean()


@dataclass
class NoImages:
    """Data module of many clients without images.

    Attributes:
        count: Number of clients.
    """

    count: int
    trainer: Any = None
    class_names: list[str] = field(default_factory=lambda: ["anything"])
    held_out_domains: list[str] = field(default_factory=list)
    protocol: str = "no images"
    split_hash: str = "no images"

    def __post_init__(self) -> None:
        """Make the clients, each with ten images."""
        self.clients = [Client(index, 0, 10, str(index)) for index in range(self.count)]

    def describe(self) -> dict[str, Any]:
        """Describe the data as empty."""
        return {"name": "no images"}

    def prepare_data(self) -> None:
        """Do nothing."""

    def setup(self, stage: str) -> None:
        """Do nothing."""

    def bind(self, **options: Any) -> None:
        """Do nothing."""

    def encode(self) -> None:
        """Do nothing."""

    def train_dataloader(self, client: Client | None = None, seed: int | None = None, once: bool = False) -> Loader:
        """Return no batches."""
        return NoBatches()

    def evaluation_splits(self) -> list[Any]:
        """Return no splits."""
        return []


@dataclass
class Points(NoImages):
    """Clients with a few generated features each, from three domains.

    Attributes:
        width: Width of a feature.
        images: Features of each client, in one batch.
    """

    width: int = 1
    images: int = 16

    def __post_init__(self) -> None:
        """Make the clients."""
        self.clients = [Client(index, index % 3, self.images, str(index)) for index in range(self.count)]

    def train_dataloader(self, client: Client | None = None, seed: int | None = None, once: bool = False) -> Loader:
        """Return one batch, the same in every round."""
        generator = torch.Generator().manual_seed(0 if client is None else client.id)
        features = torch.randn(self.images, self.width, generator=generator)
        return [({"features": features}, torch.randint(len(self.class_names), (self.images,), generator=generator))]


class NoBatches:
    """An empty loader."""

    def __len__(self) -> int:
        """Return 0."""
        return 0

    def __iter__(self) -> Iterator[Batch]:
        """Yield nothing."""
        return iter(())
