"""fedvlp's local training steps with prepared constants, and their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.operations import image_tower, packed_text, patches_work, prompted_image, text_tower
from fedvlp.catalog.description import DATA_SETS
from fedvlp.clip import CLIP, clean_class_name
from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client
from fedvlp.methods.adapt import ADAPT
from fedvlp.methods.diprompt import DiPrompT
from fedvlp.methods.plan import PLAN
from fedvlp.methods.promptfl import PromptFL
from fedvlp.methods.trip.trip import TRIP

NAMED = ("PACS", "OfficeHome", "DomainNet")
CLASS_NAMES = {len(DATA_SETS[name].class_names): list(DATA_SETS[name].class_names) for name in NAMED}
BATCH_SIZES = {"TRIP": 16, "PromptFL": 32, "DiPrompT": 16, "PLAN": 32, "ADAPT": 32}
DOMAINS = ("art painting", "cartoon", "photo")


def make_module(
    method: str, clip: CLIP, class_names: list[str], domains: Sequence[str] = DOMAINS, device: str = "cpu"
) -> FederatedModule:
    """Make a method on a device with default options, one client per domain, and one template for teachers."""
    makers: dict[str, Callable[[], FederatedModule]] = {
        "TRIP": lambda: TRIP(class_names, clip, templates=1),
        "PromptFL": lambda: PromptFL(class_names, clip),
        "PLAN": lambda: PLAN(class_names, len(domains), clip, templates=1),
        "ADAPT": lambda: ADAPT(class_names, list(domains), clip),
        "DiPrompT": lambda: DiPrompT(class_names, list(domains), clip),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = makers[method]()
    module.train()
    module.to(device)
    module.start_client(RoundContext(1, module.configure_phases()[0], Client(0, 0, 100, "first")))
    return module


@dataclass(frozen=True)
class StepBatch:
    """A batch of synthetic images.

    Attributes:
        images: Pixels [B, 3, V, V].
        labels: Classes [B].
        constants: Inputs of the module's training step that replace images, each [B, ...].
    """

    images: Tensor
    labels: Tensor
    constants: dict[str, Tensor]

    def first(self, count: int) -> StepBatch:
        """Select the first images."""
        constants = {name: value[:count] for name, value in self.constants.items()}
        return StepBatch(self.images[:count], self.labels[:count], constants)


def make_batch(module: FederatedModule, batch_size: int) -> StepBatch:
    """Make synthetic images on the module's device; the constants of two images are repeated."""
    clip: Any = module.clip
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch_size, 3, clip.image_size, clip.image_size, generator=generator).to(module.device)
    labels = torch.randint(len(module.class_names), (batch_size,), generator=generator).to(module.device)  # type: ignore[arg-type]
    if not module.precomputes:
        return StepBatch(images, labels, {"images": images})
    # Preparing is slow, and its values do not affect the duration of a step.
    few = module.precomputed(images[:2])
    return StepBatch(images, labels, {name: _repeat(value, batch_size) for name, value in few.items()})


@dataclass
class Step:
    """One local step of fedvlp: loss, gradients, optimizer.

    Attributes:
        module: The method, begun.
        batch: The training batch.
    """

    module: FederatedModule
    batch: StepBatch

    def __post_init__(self) -> None:
        """Make the optimizer."""
        made = self.module.configure_optimizers()
        if made is None:
            raise ValueError("The method trains nothing.")
        self._optimizer = made

    def __call__(self) -> None:
        """Run a step."""
        inputs = (self.batch.constants, self.batch.labels)
        loss: Any = self.module.training_step(inputs, 0)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.module.on_train_batch_end(loss, inputs, 0)


def least_operations(
    method: str, clip: CLIP, class_names: list[str], batch_size: int, domains: Sequence[str] = DOMAINS
) -> float:
    """Count the minimum operations of a step: each token once, with images without prompts prepared before."""
    names = [clean_class_name(name) for name in class_names]
    length = {"TRIP": 32, "PLAN": 8}.get(method, 16)
    text = packed_text(clip, names, length)
    if method in ("TRIP", "PromptFL"):
        return text.both * (batch_size if method == "TRIP" else 1)
    if method == "DiPrompT":
        return text.both + _diprompt(clip, names, length, domains)
    if method == "PLAN":
        # In a round, text features of the global prompts are constants, and each image is encoded with them once.
        image = prompted_image(clip, length, read=1)
        return text.both + batch_size * (image.both + image.forward + 2 * patches_work(clip))
    image = prompted_image(clip, len(domains), read=1 + len(domains))
    return text.both + (len(domains) - 1) * text.forward + batch_size * (image.both + patches_work(clip))


def _diprompt(clip: CLIP, names: list[str], length: int, domains: Sequence[str]) -> float:
    """Count the operations of DiPrompT's domain prompts, of which a client trains its own, and query prompt."""
    own = []
    for domain in domains:
        own.append(packed_text(clip, [f"{domain} {name}" for name in names], length))
    pairs = [f"{name} with the domain of {domain}" for name, domain in product(names, domains)]
    asked = packed_text(clip, pairs, length)
    return own[0].both + sum(work.forward for work in own[1:]) + asked.both


def reference_operations(method: str, clip: CLIP, num_classes: int, length: int, batch_size: int) -> float:
    """Count the operations of a reference step, with whole sequences of a given length.

    Args:
        method: Its name.
        clip: The frozen CLIP.
        num_classes: C.
        length: Tokens in a text sequence.
        batch_size: Images in a batch.
    """
    text = text_tower(clip).whole(num_classes, length)
    tower = image_tower(clip)
    tokens = int(clip.num_image_tokens or 0)
    image = tower.whole(1, tokens).forward + patches_work(clip)
    if method == "TRIP":
        return batch_size * (text.both + 2 * image)
    if method == "PromptFL":
        return text.both + batch_size * image
    if method == "DiPrompT":
        return (1 + 2 * len(DOMAINS)) * text.both + batch_size * image
    if method == "PLAN":
        prompted = tower.whole(1, tokens + 8)
        return text.both + text.forward + batch_size * (prompted.both + prompted.forward + 2 * patches_work(clip))
    prompted = tower.whole(1, tokens + len(DOMAINS))
    texts = text.both + (len(DOMAINS) - 1) * text.forward
    return texts + batch_size * (prompted.both + patches_work(clip))


def _repeat(value: Tensor, count: int) -> Tensor:
    return value[torch.arange(count, device=value.device) % len(value)]
