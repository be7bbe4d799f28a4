"""A backdoor with a trigger that is learned together with prompts.

Papers: Zhang et al., BadPromptFL (arXiv 2508.08040): hostile clients optimise a trigger and their prompts jointly, and
send the poisoned prompts. The trigger is bounded as in projected gradient descent (Madry et al. 2018).

Deviations:
    * Time: fedvlp learns the trigger once, before the first round, so that features of triggered images can be cached.
      It uses the images of all hostile clients and the initial prompts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedvlp.core.module import FederatedModule, restored
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client
from fedvlp.data import FederatedDataModule
from fedvlp.tools.attacks.data_attacks import Backdoor, Trigger, add_perturbation
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import FractionAboveZero, PositiveInt
from fedvlp.utils.seeding import derive_seed, restored_generators, seed_generators

TRIGGER = 0x547267  # separates the random numbers of the trigger's learning
ClientBatch = tuple[Client, Tensor, Tensor]
"""A client, its images [B, 3, V, V] and their labels [B]."""
STEPS_ACROSS = 10  # steps from the middle of the trigger's range to its end


@dataclass(frozen=True)
class BadPromptFL(Backdoor):
    """Hostile clients learn a perturbation that makes the method predict one class, and train on perturbed images.

    Args:
        seed: Seed of the choice of hostile clients, and of the trigger's learning.
        epsilon: Largest change of a pixel, as a share of the pixel range.
        steps: Steps of the trigger's learning; each takes a batch of one hostile client.
    """

    epsilon: FractionAboveZero = 0.06
    steps: PositiveInt = 100

    def trigger(self, data: FederatedDataModule, module: FederatedModule) -> Trigger:
        """Learn the trigger of the hostile clients; zero if there are none."""
        hostile = self.hostile(data.clients)
        clients = [client for client in data.clients if client.id in hostile]
        if not clients:
            return partial(add_perturbation, values=np.zeros((1, 1, 3), np.float32))
        with restored_generators(), restored(module):
            module.train()
            seed_generators(derive_seed(TRIGGER, self.seed))
            values = self._learn(module, _batches(data, clients, self.seed), *black_and_white(data))
        return partial(add_perturbation, values=values.permute(1, 2, 0).contiguous().cpu().numpy())

    def _learn(self, module: FederatedModule, batches: Iterator[ClientBatch], black: Tensor, white: Tensor) -> Tensor:
        """Learn the trigger [3, V, V], as a share of the pixel range, jointly with the prompts."""
        phase = module.configure_phases()[0]
        trigger = torch.zeros(0)
        optimizer = None
        for client, images, labels in islice(batches, self.steps):
            module.start_client(RoundContext(0, phase, client))
            if not len(trigger):
                trigger = torch.zeros_like(images[0], requires_grad=True)
                optimizer = module.configure_optimizers()
            triggered = add_trigger(images, trigger, black, white)
            loss = _loss(module, images, labels) + _loss(module, triggered, torch.full_like(labels, self.target))
            torch.autograd.backward(loss)
            if optimizer is not None:
                optimizer.step()
            module.zero_grad()
            trigger = self._step(trigger)
        return trigger.detach()

    def _step(self, trigger: Tensor) -> Tensor:
        """Step against the sign of the trigger's gradient, within ``epsilon`` (Madry et al. 2018)."""
        if trigger.grad is None:
            raise UserError("BadPromptFL needs a loss that depends on the images, but no gradient reaches them.")
        step = self.epsilon / STEPS_ACROSS * trigger.grad.sign()
        return (trigger.detach() - step).clamp(-self.epsilon, self.epsilon).requires_grad_()


def black_and_white(data: FederatedDataModule) -> tuple[Tensor, Tensor]:
    """Apply the method's transform to black and white, [3, 1, 1] each."""
    shades = []
    loaders = data.loaders[""]
    for value in (0, 255):
        image = loaders.transform(Image.new("RGB", (32, 32), (value, value, value)))
        shades.append(image.mean((1, 2), keepdim=True).to(loaders.device))
    return shades[0], shades[1]


def add_trigger(images: Tensor, trigger: Tensor, black: Tensor, white: Tensor) -> Tensor:
    """Add a share of the pixel range [3, V, V] to images [B, 3, V, V], clamped to black and white."""
    unit = white - black
    return black + unit * ((images - black) / unit + trigger).clamp(0, 1)


def _loss(module: FederatedModule, images: Tensor, labels: Tensor) -> Tensor:
    # Do not use `precomputed`, because its results have no gradient.
    return cast(Tensor, module.training_step((module.precompute(images), labels), 0))


def _batches(data: FederatedDataModule, clients: Sequence[Client], seed: int) -> Iterator[ClientBatch]:
    # Without random crops, which would move the trigger.
    loaders = replace(data.loaders[""], precompute=None, train_transform=None)
    for number in count():
        for client in clients:
            loader = loaders.train_loader(client.id, data.batch_size, derive_seed(TRIGGER, seed, number, client.id))
            batch: Any = next(iter(loader))
            yield client, batch[0], batch[1]
