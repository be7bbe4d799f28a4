"""A method with its trained tensors, and the images of its run: the input of explain and audit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedvlp.clip import CLIP
from fedvlp.core.module import FederatedModule
from fedvlp.core.roles import SERVED
from fedvlp.core.state import Client, State
from fedvlp.data import FederatedDataModule
from fedvlp.data.loaders import ImageDataset
from fedvlp.runs.run_folder import find_run_folder
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class TrainedRun:
    """A method to inspect.

    Attributes:
        module: The method in evaluation mode, with the deployed tensors.
        personal: Personal tensors by the client's id; empty if no file contains them.
        data: The run's images, set up and bound to the method's transform; None without images.
        file: The trained tensors; None for an untrained method.
    """

    module: FederatedModule
    deployed: State
    personal: Mapping[int, State]
    data: FederatedDataModule | None = None
    file: Path | None = None

    def folder(self, output: str | None, name: str) -> Path:
        """Choose the output folder: ``output`` if given, otherwise ``name`` in the run's folder."""
        return Path(output) if output else (Path() if self.file is None else find_run_folder(self.file)) / name

    @property
    def name(self) -> str:
        """Name of the method."""
        return type(self.module).__name__

    @property
    def clip(self) -> Any:
        """The frozen CLIP."""
        return self.module.clip


@dataclass(frozen=True)
class RunImage:
    """One image of a run, not yet read, with its position in the dataset that reads it."""

    domain: str
    name: str
    dataset: ImageDataset
    position: int

    @property
    def label(self) -> int:
        """Label of the image."""
        return int(self.dataset.labels[self.position])


def read_pixels(images: Sequence[RunImage]) -> Float[Tensor, "B 3 V V"]:
    """Read images and apply the method's transform."""
    return torch.stack([image.dataset[image.position][0] for image in images])


def pixel_scale(clip: CLIP, images: Tensor) -> tuple[Float[Tensor, "3 1 1"], Float[Tensor, "3 1 1"]]:
    """Mean and deviation of CLIP's normalisation, with the type and device of images."""
    options: Any = clip.preprocess_options
    return torch.tensor(options.mean).to(images)[:, None, None], torch.tensor(options.std).to(images)[:, None, None]


def denormalise(clip: CLIP, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B 3 V V"]:
    """Convert the output of CLIP's transform to pixels in [0, 1]."""
    mean, deviation = pixel_scale(clip, images)
    return (images * deviation + mean).clamp(0, 1)


def drawable(clip: CLIP, pixels: Float[Tensor, "B 3 V V"]) -> Float[np.ndarray, "B V V 3"]:
    """Convert the output of CLIP's transform to arrays in [0, 1] for matplotlib; they show what the tower sees."""
    return denormalise(clip, pixels.float()).permute(0, 2, 3, 1).numpy()


def training_images(data: FederatedDataModule) -> dict[Client, list[RunImage]]:
    """List each client's training images, by domain; raise a UserError if the images of all clients are pooled."""
    if any(client.is_pool for client in data.clients):
        raise UserError("Expected a federated run, got a centralised one, which sends no updates to audit.")
    dataset: Any = data.train_dataloader().dataset  # type: ignore[union-attr]
    clients = {client.id: client for client in data.clients}
    images: dict[Client, list[RunImage]] = {client: [] for client in data.clients}
    # One dataset contains the training images of all clients, in the order of the table.
    position = 0
    for entry in data.split_table():
        if entry["role"] == "train":
            for name in entry["images"]:
                images[clients[entry["client"]]].append(RunImage(entry["domain"], name, dataset, position))
                position += 1
    return images


def evaluation_images(data: FederatedDataModule, role: str) -> dict[str, list[RunImage]]:
    """List the images of ``validation``, ``test`` or ``held_out`` by domain, in the order of the table."""
    # Validation images have their own loaders; test and held-out images share loaders.
    served = ("validation",) if role == "validation" else SERVED
    loaders = data.val_dataloader() if role == "validation" else data.test_dataloader()
    entries = [entry for entry in data.split_table() if entry["role"] in served]
    images: dict[str, list[RunImage]] = {}
    for entry, loader in zip(entries, loaders, strict=True):
        if entry["role"] == role:
            dataset: Any = loader.dataset
            split = [RunImage(entry["domain"], name, dataset, i) for i, name in enumerate(entry["images"])]
            images.setdefault(entry["domain"], []).extend(split)
    return images
