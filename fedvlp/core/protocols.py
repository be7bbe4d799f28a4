"""What the core asks of backbones and data, so that it need not import them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedvlp.core.roles import MeasuredRole
from fedvlp.core.state import Client

Inputs = Tensor | dict[str, Tensor]
DOMAIN = "domain"
"""The name under which inputs say of which source domain each image is, [B], where a method asks for it."""
Batch = tuple[Inputs, Tensor] | list[Any]
"""Inputs and labels; a list where PyTorch's own DataLoader made it."""
Transform = Callable[[Any], Tensor]
Prepare = Callable[[Tensor], dict[str, Tensor]] | None
"""Computes what never changes for each image; None where that is nothing."""


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

    def compile_towers(self) -> None:
        """Has a compiler fuse what prompts go through."""


@runtime_checkable
class Loader(Protocol):
    """Batches of (inputs, labels); the inputs are images or what was precomputed of them."""

    def __len__(self) -> int:
        """The number of batches."""

    def __iter__(self) -> Iterator[Batch]:
        """Goes through the images once."""


@runtime_checkable
class EvaluationSplit(Protocol):
    """Images of one domain on which accuracy is measured.

    A split whose images are of other classes than those that train says by ``class_names`` which they are, in the order
    of its labels; a split without that attribute, or with none in it, is of those that train.
    """

    @property
    def name(self) -> str:
        """The name ``<role>/<domain>``."""

    @property
    def role(self) -> MeasuredRole:
        """Whether clients train on other images of the domain, or no client does."""

    @property
    def domain(self) -> str:
        """The domain's name."""

    @property
    def clients(self) -> Sequence[Client]:
        """Who trains on other images of the domain; no client where it is held out."""

    @property
    def loader(self) -> Loader:
        """The images, in a fixed order."""


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
class MeasuresOtherClasses(Protocol):
    """Data of which some splits are of other classes than those that train."""

    @property
    def other_classes(self) -> Sequence[Sequence[str]]:
        """The names of the classes of such splits, each list once; none where there are none."""

    def bind_classes(self, class_names: Sequence[str], prepare: Prepare, key: str) -> None:
        """Takes what the method asks of images whose classes are these; called after ``bind``, for each list."""


@runtime_checkable
class FederatedData(TrainingData, MeasuredData, Protocol):
    """The data module of a federation; ``fedvlp.data.FederatedDataModule`` is one."""

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
        """Reads what there is and splits it."""

    def bind(
        self,
        *,
        transform: Transform,
        train_transform: Transform,
        prepare: Prepare,
        key: str,
        device: torch.device,
        with_domains: bool,
    ) -> None:
        """Takes what the method asks of images."""

    def encode(self) -> None:
        """Computes once per image what never changes, with ``prepare``."""
