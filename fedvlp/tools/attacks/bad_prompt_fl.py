"""A backdoor whose trigger is learned together with prompts.

Papers: Zhang et al., BadPromptFL (arXiv 2508.08040): hostile clients optimise a trigger and their prompts jointly, and
send the poisoned prompts. The trigger is bounded as in projected gradient descent (Madry et al. 2018).

Departures:
    * The hostile clients learn one trigger before the first round, together, on their own images and with a copy of the
      prompts that training begins with; it stays as it is from then on. So what a method computes of a triggered image
      is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client
from fedvlp.data import FederatedDataModule
from fedvlp.tools.attacks.backdoor import Backdoor
from fedvlp.tools.attacks.trigger import Perturbation, Trigger
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed, restored_generators, seed_generators

TRIGGER = 0x547267
"""Marks the draws of the trigger's learning among all that depends on a seed."""
ClientBatch = tuple[Client, Tensor, Tensor]
"""A client, its images [B, 3, V, V] and their labels [B]."""
STEPS_ACROSS = 10  # steps from the middle of the trigger's range to its end


@dataclass(frozen=True)
class BadPromptFL(Backdoor):
    """Hostile clients learn what to add to images so that these are taken for one class, and train on them as such.

    Args:
        clients: How many clients are hostile: a number, or a share below 1, rounded down.
        seed: Seed of the choice of hostile clients, and of the trigger's learning.
        target: Number of the class that the trigger stands for.
        share: Share of a hostile client's images that have the trigger, drawn anew in each round, in (0, 1].
        epsilon: The most that is added to a pixel or taken from it, as a share of the pixel range, in (0, 1].
        steps: Steps of the trigger's learning, at least 1; each takes a batch of one hostile client.
    """

    clients: float = 0.3
    seed: int = 0
    target: int = 0
    share: float = 0.5
    epsilon: float = 0.06
    steps: int = 100

    def __post_init__(self) -> None:
        """Refuses what is no share, and no step."""
        super().__post_init__()
        self.check_shares("share", "epsilon")
        if self.steps < 1:
            raise UserError(f"BadPromptFL needs at least one step to learn its trigger; got {self.steps}.")

    def trigger(self, data: FederatedDataModule, module: FederatedModule) -> Trigger:
        """Returns what the hostile clients learned together; without any of them nothing is added."""
        hostile = self.hostile(data.clients)
        clients = [client for client in data.clients if client.id in hostile]
        if not clients:
            return Perturbation(np.zeros((1, 1, 3), np.float32))
        with restored_generators(), _left_as_it_is(module):
            seed_generators(derive_seed(TRIGGER, self.seed))
            values = self._learn(module, _batches(data, clients, self.seed), PixelRange.of(data))
        return Perturbation(values.permute(1, 2, 0).contiguous().cpu().numpy())

    def _learn(self, module: FederatedModule, batches: Iterator[ClientBatch], pixels: PixelRange) -> Tensor:
        """Returns the trigger [3, V, V] as a share of the pixel range; it stays within ``epsilon``.

        Args:
            module: the method; its first phase's prompts are trained along.
            batches: of hostile clients, images as the method takes them.
            pixels: what black and white are in those images.
        """
        phase = module.configure_phases()[0]
        trigger = torch.zeros(0)
        optimizer = None
        for client, images, labels in islice(batches, self.steps):
            module.start_client(RoundContext(0, phase, client))
            if not len(trigger):
                trigger = torch.zeros_like(images[0], requires_grad=True)
                optimizer = module.configure_optimizers()
            honest = _loss(module, images, labels)
            poisoned = _loss(module, pixels.with_added(images, trigger), torch.full_like(labels, self.target))
            torch.autograd.backward(honest + poisoned)
            if optimizer is not None:
                optimizer.step()
            module.zero_grad()
            trigger = self._stepped(trigger)
        return trigger.detach()

    def _stepped(self, trigger: Tensor) -> Tensor:
        """Returns the trigger after a step against its gradient's sign, within ``epsilon`` (Madry et al. 2018)."""
        if trigger.grad is None:
            raise UserError("BadPromptFL needs a method whose loss depends on its images; no gradient reaches them.")
        step = self.epsilon / STEPS_ACROSS * trigger.grad.sign()
        return (trigger.detach() - step).clamp(-self.epsilon, self.epsilon).requires_grad_()


@dataclass(frozen=True)
class PixelRange:
    """What black and white are in images as a method takes them.

    Attributes:
        black: [3, 1, 1].
        white: [3, 1, 1].
    """

    black: Tensor
    white: Tensor

    @classmethod
    def of(cls, data: FederatedDataModule) -> PixelRange:
        """Finds them by an image of each through the method's transform."""
        loaders = data.loaders[""]
        shades: list[Tensor] = []
        for value in (0, 255):
            image = loaders.transform(Image.new("RGB", (32, 32), (value, value, value)))
            shades.append(image.mean((1, 2), keepdim=True).to(loaders.device))
        return cls(shades[0], shades[1])

    def with_added(self, images: Tensor, trigger: Tensor) -> Tensor:
        """Returns images [B, 3, V, V] with a share of the range [3, V, V] added, cut off at black and white."""
        unit = self.white - self.black
        shares = (images - self.black) / unit + trigger
        return self.black + unit * shares.clamp(0, 1)


def _loss(module: FederatedModule, images: Tensor, labels: Tensor) -> Tensor:
    """Returns a method's loss of images, whose gradient goes on to their pixels where the method lets it."""
    loss: Any = module.training_step((module.precompute(images), labels), 0)
    made: Tensor = loss
    return made


def _batches(data: FederatedDataModule, clients: Sequence[Client], seed: int) -> Iterator[ClientBatch]:
    """Yields for one client after another, again and again, a batch of its training images with labels."""
    loaders = replace(data.loaders[""], precompute=None, train_transform=None, of_classes={})
    for number in count():
        for client in clients:
            loader = loaders.train_loader(client.id, data.batch_size, derive_seed(TRIGGER, seed, number, client.id))
            batch: Any = next(iter(loader))
            yield client, batch[0], batch[1]


@contextmanager
def _left_as_it_is(module: FederatedModule) -> Iterator[None]:
    """Restores the method's tensors after the block, in which it may be trained."""
    before = {name: value.detach().clone() for name, value in module.communicable_state().items()}
    was_training = module.training
    module.train()
    try:
        yield
    finally:
        module.context = None
        module.load_state(before)
        module.train(was_training)
