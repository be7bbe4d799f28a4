"""What the core asks of backbones and data, so that it need not import them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedvlp.core.roles import MeasuredRole
from fedvlp.core.state import Client

Inputs = Tensor | dict[str, Tensor]
# The name under which inputs say of which source domain each image is, [B], where a method asks for it.
DOMAIN = "domain"
# Inputs and labels; a list where PyTorch's own DataLoader made it.
Batch = tuple[Inputs, Tensor] | list[Any]
Transform = Callable[[Any], Tensor]
# Makes of images [B, 3, V, V] what never changes for each, tensors [B, ...] by name.
Precompute = Callable[[Tensor], dict[str, Tensor]]


@runtime_checkable
class Backbone(Protocol):
    """A frozen vision-language model."""

    @property
    def spec(self) -> Any:
        """A dataclass that says which model it is."""

    @property
    def preprocess(self) -> Transform:
        """The transform for evaluation, PIL image to [3, height, width]."""

    @property
    def train_preprocess(self) -> Transform:
        """The transform with augmentation, PIL image to [3, height, width]."""

    def encode_image(self, images: Tensor) -> Tensor:
        """Joint features [B, d] of images [B, 3, V, V]."""

    def fingerprint(self) -> str:
        """A digest of the weights."""

    def cast_towers(self, dtype: torch.dtype) -> None:
        """Rounds the towers' large weights to a type, in which products with them are taken."""


@runtime_checkable
class Loader(Protocol):
    """Batches of (inputs, labels); the inputs are images or what was precomputed of them."""

    def __len__(self) -> int:
        """The number of batches."""

    def __iter__(self) -> Iterator[Batch]:
        """Go through the images once."""


@dataclass(frozen=True)
class EvaluationSplit:
    """Images of one domain, or of one client, on which accuracy is measured, in a fixed order.

    Attributes:
        name: ``<role>/<domain>`` or ``<role>/<client>``.
        role: validation and test images belong to a source domain, held-out images to one that no client trains on.
        domain: name of the domain, or of the client.
        clients: who trains on other images of the domain; none where held out.
        class_names: the classes to choose from, in the order of the labels; none for the classes that train.
    """

    name: str
    role: MeasuredRole
    domain: str
    clients: Sequence[Client]
    loader: Loader
    num_examples: int
    class_names: tuple[str, ...] = ()


@runtime_checkable
class TrainingData(Protocol):
    """What clients train on; a data module is one, and so is what an attack makes of it."""

    @property
    def clients(self) -> list[Client]:
        """All clients; known after ``setup``."""

    def train_dataloader(self, client: Client | None = None, seed: int | None = None) -> Loader:
        """One client's training images, shuffled by ``seed`` alone."""


@runtime_checkable
class MeasuredData(Protocol):
    """What accuracy is measured on; a data module is one."""

    @property
    def class_names(self) -> list[str]:
        """The classes, in the order of the labels."""

    @property
    def clients(self) -> list[Client]:
        """All clients; known after ``setup``."""

    def evaluation_splits(self) -> Sequence[EvaluationSplit]:
        """Every split on which accuracy is measured."""


@runtime_checkable
class HasOutOfDistribution(Protocol):
    """Data with images of other things than the classes, for which a method's confidence should be lower."""

    def out_of_distribution_splits(self) -> Sequence[EvaluationSplit]:
        """Splits named ``out_of_distribution/...``, whose labels mean nothing and on which no client trains."""


@runtime_checkable
class FederatedData(TrainingData, MeasuredData, Protocol):
    """All that a federation asks of a ``LightningDataModule``; ``fedvlp.data.FederatedDataModule`` is one.

    It is called in this order: ``prepare_data``, ``setup``, ``bind``, ``encode``, then ``train_dataloader`` for each
    client and ``evaluation_splits`` in every round.
    """

    trainer: Any

    @property
    def held_out_domains(self) -> list[str]:
        """Domains that no client has."""

    @property
    def protocol(self) -> str:
        """What is trained on, by whom, and what it is measured on, in one line."""

    @property
    def split_hash(self) -> str:
        """A digest of which image is in which split."""

    def describe(self) -> dict[str, Any]:
        """What results must have in common to be in one table, made to be written as JSON."""

    def prepare_data(self) -> None:
        """Lightning's hook."""

    def setup(self, stage: str) -> None:
        """Read what there is and split it."""

    def bind(
        self,
        *,
        transform: Transform,
        train_transform: Transform,
        precompute: Precompute | None,
        key: str,
        device: torch.device,
        with_domains: bool,
    ) -> None:
        """Receive the method's transforms and its ``precompute`` with the key of its cache."""

    def encode(self) -> None:
        """Compute once per image what never changes, with ``precompute``."""
