"""Inverts gradients of a run's clients: of the prompts that they send here, and of a full model for comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.state import Client
from fedvlp.tools.audit.gradients import Gradient, image_of_gradient, loss_gradient, sent_parameters, trainable_tower
from fedvlp.tools.audit.images import RunImages
from fedvlp.tools.audit.inversion import InversionOptions, Inverted, invert
from fedvlp.tools.audit.similarity import normalised, pictures, pixel_bounds, similarities
from fedvlp.tools.audit.targets import Target, choose_targets
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed

START_DEVIATION = 0.1
"""Of the pixels from which an attack starts, in standard deviations of CLIP's normalised pixels."""
GUESS_STEPS = 15
"""Of the optimizer for each class, where the class is guessed."""
SOURCES = ("prompts", "full model", "full model, closed form")
"""From what images are recovered; all else that stands beside them are baselines."""


@dataclass(frozen=True)
class Recovered:
    """What was made in place of a target's images.

    Attributes:
        source: one of ``SOURCES``, or a baseline.
        images: in the target's order.
        scores: for each its likeness to the true one.
        distance: of its gradient from the one sent; None where none was searched for.
        labels: the classes that were guessed; None where they were known.
    """

    source: str
    images: Float[Tensor, "B 3 V V"]
    scores: list[dict[str, float]]
    distance: float | None = None
    labels: list[int] | None = None


@dataclass(frozen=True)
class Inversion:
    """All gradients that were inverted.

    Attributes:
        phase: the phase whose gradients they are.
        sent: shape of each parameter that a client sends in it, by name; empty where it sends nothing.
        targets: the true images.
        recovered: for each target, what was made in its place.
    """

    phase: str
    sent: Mapping[str, tuple[int, ...]]
    targets: list[Target]
    recovered: list[list[Recovered]]


def chosen_phase(module: FederatedModule, name: str | None, client: Client) -> Phase:
    """Returns the phase of a name, or the first in which a client sends something, else the first.

    Raises:
        UserError: if there is none.
    """
    phases = list(module.configure_phases())
    known = ", ".join(phase.name for phase in phases)
    if name is not None:
        phases = [phase for phase in phases if phase.name == name]
    if not phases:
        method = type(module).__name__
        what = f"has no phase {name!r}; it has {known}" if known else "trains nothing, so it has no gradient to invert"
        raise UserError(f"{method} {what}. Correct --inversion.phase, or leave inversion out of --what.")
    for phase in phases:
        module.start_client(RoundContext(0, phase, client))
        if sent_parameters(module):
            return phase
    return phases[0]


def invert_gradients(
    module: FederatedModule, images: RunImages, options: InversionOptions, round: int, seed: int
) -> Inversion:
    """Returns what can be recovered of images of the clients.

    Args:
        module: the method as a client downloads it; in training mode afterwards, with no client started.
        images: of the run.
        options: how.
        round: number of finished rounds, which some losses depend on.
        seed: of the images that are drawn, and of the attack's start.

    Raises:
        UserError: if nothing is trained, or a gradient is zero or not finite.
    """
    module.train()
    phase = chosen_phase(module, options.phase, next(iter(images.training)))
    targets = choose_targets(images, options, seed)
    sent: Mapping[str, Tensor] = {}
    recovered = []
    for number, target in enumerate(targets):
        module.start_client(RoundContext(round, phase, target.client))
        sent = sent_parameters(module)
        recovered.append(_recover(module, target, sent, options, derive_seed(seed, number)))
    module.context = None
    return Inversion(phase.name, {name: tuple(value.shape) for name, value in sent.items()}, targets, recovered)


def guess_label(distance_as: Callable[[int], float], num_classes: int) -> int:
    """Returns the class as which an image comes nearest to the gradient, after a few steps for each class.

    In place of the rule of Zhao et al. ("iDLG", 2020, arXiv 2001.02610), which reads the class from the signs of the
    last layer's gradient: prompts have no row for each class.

    Args:
        distance_as: from a class to the distance of the gradient that an image of this class comes to.
        num_classes: number of classes.
    """
    return min(range(num_classes), key=[distance_as(label) for label in range(num_classes)].__getitem__)


def _recover(
    module: FederatedModule, target: Target, sent: Mapping[str, Tensor], options: InversionOptions, seed: int
) -> list[Recovered]:
    """Returns what each source gives, and the baselines."""
    clip: Any = module.clip
    device = next(clip.parameters()).device
    true = target.images.to(device)
    noise = torch.randn(true.shape, generator=torch.Generator().manual_seed(seed)).to(device)
    start = START_DEVIATION * noise
    found = []
    if sent:
        found.append(_attack(module, target, "prompts", sent, start, options)[0])
    with trainable_tower(module) as tower:
        trained = {name: value for name, value in module.communicable_state().items() if value.requires_grad}
        attacked, gradient = _attack(module, target, "full model", {**trained, **tower}, start, options)
    found.append(attacked)
    exact = image_of_gradient(gradient) if options.images == 1 else None
    if exact is not None:
        found.append(Recovered(SOURCES[2], exact, []))
    found += _baselines(clip, target, noise)
    return [_scored(clip, each, true) for each in found]


def _baselines(clip: Any, target: Target, noise: Tensor) -> list[Recovered]:
    """Returns images that owe nothing to a gradient."""
    made = {
        "same class": target.of_same_class.to(noise),
        "grey": normalised(clip, torch.full_like(noise, 0.5)),
        "noise": noise.clamp(*pixel_bounds(clip, noise)),
    }
    return [Recovered(source, images, []) for source, images in made.items()]


def _attack(
    module: FederatedModule,
    target: Target,
    source: str,
    parameters: Mapping[str, Tensor],
    start: Tensor,
    options: InversionOptions,
) -> tuple[Recovered, Gradient]:
    """Returns what is recovered from the gradient of some parameters, and that gradient.

    Raises:
        UserError: if it is zero, or not finite.
    """
    clip: Any = module.clip
    labels = target.labels.to(start.device)
    gradient = loss_gradient(module, target.images.to(start.device), labels, parameters)
    length = torch.stack([part.norm() for part in gradient.values()]).norm().item()
    if not 0 < length < math.inf:
        raise UserError(
            f"The gradient of the {source} has the length {length:g}, so there is nothing to invert. Pass another "
            "--inversion.phase, or a trained method whose loss is finite."
        )

    def invert_as(labels: Tensor, steps: int) -> Inverted:
        gradient_of = partial(loss_gradient, module, labels=labels, parameters=parameters, is_differentiable=True)
        return invert(gradient_of, gradient, start, pixel_bounds(clip, start), replace(options, steps=steps))

    guessed = None
    if options.labels == "guessed":
        steps = min(options.steps, GUESS_STEPS)
        one = torch.ones_like(labels)
        num_classes = len(module.hparams["class_names"])
        guessed = [guess_label(lambda label: invert_as(label * one, steps).distance, num_classes)]
        labels = guessed[0] * one
    inverted = invert_as(labels, options.steps)
    return Recovered(source, inverted.images, [], inverted.distance, guessed), gradient


def _scored(clip: Any, recovered: Recovered, true: Tensor) -> Recovered:
    """Returns what was recovered with its likeness to the true images, in their order."""
    images = recovered.images
    if recovered.source in SOURCES:
        # A gradient does not tell the order of its images.
        one = pictures(clip, images).flatten(1).cpu().double()
        costs = torch.cdist(pictures(clip, true).flatten(1).cpu().double(), one)
        images = images[torch.as_tensor(linear_sum_assignment(costs.numpy())[1], device=images.device)]
    scores = similarities(clip, images, true)
    return replace(recovered, images=images, scores=scores)
