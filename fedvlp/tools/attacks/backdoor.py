"""A backdoor: images with a trigger are to be taken for one class, and all others for what they are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_map

from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import Batch, FederatedData, Loader, TrainingData
from fedvlp.core.state import Client, State
from fedvlp.data import FederatedDataModule
from fedvlp.tools.attacks.poisoned_data import ChangedBatches, PoisonedData
from fedvlp.tools.attacks.trigger import Trigger, TriggeredData
from fedvlp.training.attack import Attack
from fedvlp.training.callback import RunView
from fedvlp.training.evaluation import evaluate
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed

POISON = 0x506F69
"""Marks the draw of poisoned images among all that depends on the seed of a client's batches."""


class Backdoor(Attack):
    """Hostile clients put a trigger on some of their images and label these as one class; a subclass makes the trigger.

    Metrics of each evaluated round have ``attack_success/<role>/<domain>`` and the means of roles: the share, in
    percent, of evaluation images of other classes that are taken for the target once the trigger is on them.

    Attributes:
        target: number of the class that the trigger stands for.
        share: share of a hostile client's images that have the trigger, drawn anew in each round, in (0, 1].
    """

    target: int
    share: float

    @abstractmethod
    def trigger(self, data: FederatedDataModule, module: FederatedModule) -> Trigger:
        """Returns what is put on images.

        Args:
            data: the honest data, bound to the method.
            module: the method with the tensors that it was made with; it is left so.
        """
        ...

    def training_data(self, data: FederatedData, module: FederatedModule) -> TrainingData:
        """Returns the data with triggered images on hostile clients."""
        name = type(self).__name__
        if not isinstance(data, FederatedDataModule):
            raise UserError(
                f"{name} needs the images of a FederatedDataModule to put its trigger on; got {type(data).__name__}. "
                "Derive the data from it."
            )
        if not 0 <= self.target < len(data.class_names):
            raise UserError(
                f"{name} needs a target among the {len(data.class_names)} classes, from 0; got {self.target}."
            )
        triggered = TriggeredData.of(data, self.trigger(data, module), self.target)
        return BackdooredData(data, Poisoner(triggered, self.share), self.hostile(data.clients), triggered)

    def measure(
        self, run: RunView, data: TrainingData, deployed: State, personal: Mapping[int, State]
    ) -> dict[str, float]:
        """Returns the attack's success rates, in percent."""
        scores: dict[str, float] = {}
        if run.is_global_zero and isinstance(data, BackdooredData):
            scores = evaluate(run.module, data.triggered, run.fabric, deployed, personal)
        return {f"attack_success/{name}": value for name, value in run.fabric.broadcast(scores).items()}

    def check_shares(self, *names: str) -> None:
        """Raises UserError if one of these options is not in (0, 1]."""
        for name in names:
            if not 0 < getattr(self, name) <= 1:
                raise UserError(f"{type(self).__name__} needs a {name} in (0, 1]; got {getattr(self, name)}.")


@dataclass(frozen=True)
class Poisoner:
    """Replaces a share of a client's images by the same ones with the trigger.

    Args:
        triggered: all images with the trigger.
        share: how many are replaced, in (0, 1].
    """

    triggered: TriggeredData
    share: float

    def __call__(self, loader: Loader, client: Client, seed: int) -> Loader:
        """Returns a client's batches with poisoned images."""
        batch_size = self.triggered.data.batch_size
        # The same seed gives the same order, so that the two have the same images at the same place.
        patched = self.triggered.loaders.train_loader(client.id, batch_size, seed)
        generator = torch.Generator().manual_seed(derive_seed(seed, POISON))

        def mix(batches: Iterator[Batch]) -> Iterator[Batch]:
            for honest, poisoned in zip(batches, patched, strict=True):
                yield self._mixed(honest, poisoned, generator)

        return ChangedBatches(loader, mix)

    def _mixed(self, honest: Batch, poisoned: Batch, generator: Generator) -> Batch:
        labels: Tensor = honest[1]
        is_poisoned = (torch.rand(len(labels), generator=generator) < self.share).to(labels.device)

        def choose(own: Tensor, other: Tensor) -> Tensor:
            return torch.where(is_poisoned.reshape(-1, *[1] * (own.dim() - 1)), other, own)

        return tree_map(choose, honest[0], poisoned[0]), choose(labels, poisoned[1])


@dataclass(frozen=True)
class BackdooredData(PoisonedData):
    """Poisoned data that know all images with the trigger, on which success is measured.

    Args:
        data: the honest data.
        poison: what becomes of a hostile client's batches.
        hostile: ids of the hostile clients.
        triggered: all images with the trigger.
    """

    triggered: TriggeredData
