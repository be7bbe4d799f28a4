"""A backdoor: images with a patch are to be taken for one class, and all others for what they are.

Papers: Gu et al., BadNets, 2017, for the patch in a share of the training images; Zhang et al., BadPromptFL (arXiv
2508.08040), for backdoors in federated prompts.

Departures:
    * BadPromptFL's hostile clients learn the trigger together with their prompts. Here the trigger is a patch that
      stays as it is, so the attack is the weaker BadNets, made by clients of a federation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_map

from fedvlp.attacks.poisoned_data import ChangedBatches, PoisonedData
from fedvlp.attacks.trigger import Patch, TriggeredData
from fedvlp.core.protocols import Batch, FederatedData, Loader, TrainingData
from fedvlp.core.state import Client, State
from fedvlp.data import FederatedDataModule
from fedvlp.training.attack import Attack
from fedvlp.training.callback import RunView
from fedvlp.training.evaluation import evaluate
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed

POISON = 0x506F69
"""Marks the draw of poisoned images among all that depends on the seed of a client's batches."""


@dataclass(frozen=True)
class BackdoorPatch(Attack):
    """Hostile clients put a patch on some of their images and label these as one class.

    Metrics of each evaluated round have ``attack_success/<role>/<domain>`` and the means of roles: the share, in
    percent, of evaluation images of other classes that are taken for the target once the patch is on them.

    Args:
        clients: How many clients are hostile: a number, or a share below 1, rounded down.
        seed: Seed of the choice of hostile clients.
        target: Number of the class that the patch stands for.
        share: Share of a hostile client's images that have the patch, drawn anew in each round, in (0, 1].
        size: Side of the patch, as a share of the image's shorter side, in (0, 1].
        opacity: Share of the patch in its pixels, in (0, 1].
    """

    clients: float = 0.3
    seed: int = 0
    target: int = 0
    share: float = 0.5
    size: float = 0.25
    opacity: float = 1.0

    def __post_init__(self) -> None:
        """Refuses what is no share."""
        super().__post_init__()
        for name in ("share", "size", "opacity"):
            if not 0 < getattr(self, name) <= 1:
                raise UserError(f"BackdoorPatch needs a {name} in (0, 1]; got {getattr(self, name)}.")

    def training_data(self, data: FederatedData) -> TrainingData:
        """Returns the data with patched images on hostile clients."""
        if not isinstance(data, FederatedDataModule):
            raise UserError(
                f"BackdoorPatch needs the images of a FederatedDataModule to put its patch on; got "
                f"{type(data).__name__}. Derive the data from it."
            )
        if not 0 <= self.target < len(data.class_names):
            raise UserError(
                f"BackdoorPatch needs a target among the {len(data.class_names)} classes, from 0; got {self.target}."
            )
        triggered = TriggeredData.of(data, Patch(self.size, self.opacity), self.target)
        return BackdooredData(data, Poisoner(triggered, self.share), self.hostile(data.clients), triggered)

    def measure(
        self, run: RunView, data: TrainingData, deployed: State, personal: Mapping[int, State]
    ) -> dict[str, float]:
        """Returns the attack's success rates, in percent."""
        scores: dict[str, float] = {}
        if run.is_global_zero and isinstance(data, BackdooredData):
            scores = evaluate(run.module, data.triggered, run.fabric, deployed, personal)
        return {f"attack_success/{name}": value for name, value in run.fabric.broadcast(scores).items()}


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
        patched = self.triggered.source.train_loader(client.id, batch_size, seed)
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
