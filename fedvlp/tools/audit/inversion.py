"""Images recovered from a gradient: those whose own gradient comes nearest to the one that was sent.

Papers: Zhu et al., "Deep leakage from gradients", NeurIPS 2019, arXiv 1906.08935 (DLG); Geiping et al., "Inverting
gradients - how easy is it to break privacy in federated learning?", NeurIPS 2020, arXiv 2003.14053.

Symbols: x* -> ``images``; grad L(x, y) -> ``gradient``; alpha -> ``total_variation``.
    squared distance of gradients             DLG, Eq. 3; ``distance="squared"``
    1 - cosine of gradients + alpha TV(x)     Geiping et al., Eq. 4; ``distance="cosine"``
    Adam on the gradient's sign, within the range of pixels    Geiping et al., Section 4

Departures:
    * The squared distance is divided by the squared length of what was sent, so that one ``total_variation`` suits all.
    * DLG's optimizer is L-BFGS; here both distances have that of Geiping et al.
    * The nearest image of all steps is taken, not the last one: the attacker can see which it is.
    * Images start nearly grey. From noise of the pixels' own deviation a hundred steps do not lead away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedvlp.utils.ranges import NonNegativeFloat, PositiveFloat, PositiveInt

MILESTONES = (3 / 8, 5 / 8, 7 / 8)
"""Shares of the steps after which the step size falls to a tenth, as in the code that Geiping et al. released."""

Distance = Literal["cosine", "squared"]
GradientOf = Callable[[Tensor], Mapping[str, Tensor]]
"""From images to their gradient, which can itself be differentiated by the images."""


@dataclass(frozen=True)
class InversionOptions:
    """How images are recovered from gradients.

    Args:
        gradients: How many gradients are inverted, those of the clients in turn.
        images: How many images of a client make a gradient together.
        steps: Steps of the optimizer for each gradient.
        step_size: Its first step size, in standard deviations of CLIP's normalised pixels.
        distance: How gradients are compared: the ``cosine`` of Geiping et al., or DLG's ``squared`` distance.
        total_variation: Weight alpha of the images' total variation, at least 0; DLG has none.
        phase: Phase of the method's round whose gradient is inverted; the first that sends something if not given.
    """

    gradients: PositiveInt = 2
    images: PositiveInt = 1
    steps: PositiveInt = 60
    step_size: PositiveFloat = 0.1
    distance: Distance = "cosine"
    total_variation: NonNegativeFloat = 0.3
    phase: str | None = None


def invert(
    gradient_of: GradientOf,
    sent: Mapping[str, Tensor],
    start: Float[Tensor, "B *pixels"],
    bounds: tuple[Tensor, Tensor],
    options: InversionOptions,
) -> tuple[Float[Tensor, "B *pixels"], float]:
    """Returns the images, of all optimizer steps, whose gradient is nearest to the one sent, and its distance.

    Args:
        gradient_of: the attacker's model of the client.
        sent: the gradient.
        start: images to begin with.
        bounds: the least and largest value of a pixel, of shapes that fit the images'.
        options: of the optimizer.
    """
    images = start.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([images], lr=options.step_size)
    milestones = [round(share * options.steps) for share in MILESTONES]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)
    # The attacker sees the distance of each step, so it can keep the best.
    nearest, least = start.detach(), float("inf")
    for _ in range(options.steps):
        distance = gradient_distance(gradient_of(images), sent, options.distance)
        if distance.item() < least:
            nearest, least = images.detach().clone(), distance.item()
        objective = distance + options.total_variation * total_variation(images)
        (slope,) = torch.autograd.grad(objective, images)
        # The sign alone: slopes of pixels differ by orders of magnitude.
        images.grad = slope.sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(*bounds)
    return nearest, least


def gradient_distance(one: Mapping[str, Tensor], sent: Mapping[str, Tensor], kind: Distance) -> Float[Tensor, ""]:
    """Returns the distance of a gradient from the one sent, of all their tensors together.

    >>> sent = {"prompt": torch.tensor([2.0, 0.0])}
    >>> other = {"prompt": torch.tensor([0.0, 1.0])}
    >>> gradient_distance(other, sent, "cosine").item(), gradient_distance(other, sent, "squared").item()
    (1.0, 1.25)
    """
    # One vector of all tensors: large ones count as much as their elements.
    first = torch.cat([part.flatten() for part in one.values()])
    second = torch.cat([sent[name].flatten() for name in one])
    if kind == "cosine":
        return 1 - F.cosine_similarity(first, second, dim=0)
    return (first - second).square().sum() / second.square().sum()


def total_variation(images: Float[Tensor, "B *pixels"]) -> Float[Tensor, ""]:
    """Returns the mean distance of neighbours in rows plus that in columns; 0 of what has no rows.

    >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 3.0]]]])).item()
    3.0
    """
    if images.ndim < 4:
        return images.new_zeros(())
    across = (images[..., 1:] - images[..., :-1]).abs().mean()
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    return across + down
