"""Protocols of backbones and data, so that the core need not import them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedvlp.core.roles import MeasuredRole
from fedvlp.core.state import Client

Inputs = Tensor | dict[str, Tensor]
# Name of the input with each image's source domain, [B], for methods that ask for it.
DOMAIN = "domain"
# Inputs and labels; a list if it comes from PyTorch's DataLoader.
Batch = tuple[Inputs, Tensor] | list[Any]
# Classes of images, or targets of several labels: 1, 0, or NaN if unknown.
Targets = Int[Tensor, "B"] | Float[Tensor, "B L"]
Transform = Callable[[Any], Tensor]
# Computes the constants of images [B, 3, V, V], tensors [B, ...] by name.
Precompute = Callable[[Tensor], dict[str, Tensor]]


@runtime_checkable
class Backbone(Protocol):
    """A frozen vision-language model."""

    @property
    def spec(self) -> Any:
        """A dataclass that identifies the model."""

    @property
    def preprocess(self) -> Transform:
        """The transform for evaluation, PIL image to [3, height, width]."""

    @property
    def train_preprocess(self) -> Transform:
        """The transform with augmentation, PIL image to [3, height, width]."""

    def encode_image(self, images: Tensor) -> Tensor:
        """Compute the joint features [B, d] of images [B, 3, V, V]."""

    def fingerprint(self) -> str:
        """Compute a digest of the weights."""

    def cast_towers(self, dtype: torch.dtype) -> None:
        """Round the towers' large weights to a dtype, which matrix products then use."""


@runtime_checkable
class Loader(Protocol):
    """Batches of (inputs, labels). The inputs are images or their precomputed constants."""

    def __len__(self) -> int:
        """Count the batches."""

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the images once."""


@dataclass(frozen=True)
class EvaluationSplit:
    """Evaluation images of one domain or one client, in a fixed order.

    Attributes:
        name: ``<role>/<domain>`` or ``<role>/<client>``.
        role: Role of the images in the protocol.
        domain: Name of the domain or client.
        clients: Clients that train on other images of the domain; empty for held-out domains.
        class_names: Classes to choose from, in the order of the labels; empty for the training classes.
        groups: Number of each image's group, as in ``Predictions``.
    """

    name: str
    role: MeasuredRole
    domain: str
    clients: Sequence[Client]
    loader: Loader
    num_examples: int
    class_names: tuple[str, ...] = ()
    groups: Int[np.ndarray, "N"] | None = None


@runtime_checkable
class TrainingData(Protocol):
    """Training data of clients, such as a data module or the data of an attack."""

    @property
    def clients(self) -> list[Client]:
        """All clients; known after ``setup``."""

    def train_dataloader(self, client: Client | None = None, seed: int | None = None, once: bool = False) -> Loader:
        """Load a client's training images, in an order that depends only on ``seed``; each image once if requested."""


@runtime_checkable
class MeasuredData(Protocol):
    """Evaluation data, such as a data module."""

    @property
    def class_names(self) -> list[str]:
        """The classes, in the order of the labels."""

    @property
    def clients(self) -> list[Client]:
        """All clients; known after ``setup``."""

    def evaluation_splits(self) -> Sequence[EvaluationSplit]:
        """List all evaluation splits."""


@runtime_checkable
class HasOutOfDistribution(Protocol):
    """Data with images that belong to none of the classes, for which a method's confidence should be lower."""

    def out_of_distribution_splits(self) -> Sequence[EvaluationSplit]:
        """List splits named ``out_of_distribution/...``. No client trains on them, and their labels are unused."""


@runtime_checkable
class FederatedData(TrainingData, MeasuredData, Protocol):
    """The ``LightningDataModule`` of a federation, such as ``fedvlp.data.FederatedDataModule``.

    A federation calls ``prepare_data``, ``setup``, ``bind`` and ``encode`` in this order, then ``train_dataloader`` for
    each client and ``evaluation_splits`` in every round.
    """

    trainer: Any

    @property
    def held_out_domains(self) -> list[str]:
        """Domains that no client has."""

    @property
    def protocol(self) -> str:
        """One line about training data, clients and evaluation data."""

    @property
    def split_hash(self) -> str:
        """A digest of the assignment of images to splits."""

    def describe(self) -> dict[str, Any]:
        """Describe the data as JSON values, which must be equal for results in one table."""

    def prepare_data(self) -> None:
        """Prepare the data, as Lightning's hook."""

    def setup(self, stage: str) -> None:
        """Read the data and split them."""

    def bind(
        self,
        *,
        transform: Transform,
        train_transform: Transform,
        precompute: Precompute | None,
        key: str,
        device: torch.device,
        include_domains: bool,
    ) -> None:
        """Receive the method's transforms and its ``precompute`` with the key of its cache."""

    def encode(self) -> None:
        """Compute the constants of all images with ``precompute``."""
