"""Images recovered from a gradient by a search for images with the nearest gradient.

Papers: Zhu et al., "Deep leakage from gradients", NeurIPS 2019, arXiv 1906.08935 (DLG); Geiping et al., "Inverting
gradients - how easy is it to break privacy in federated learning?", NeurIPS 2020, arXiv 2003.14053.

Symbols: x* -> ``images``; grad L(x, y) -> ``gradient``; alpha -> ``total_variation``.
    squared distance of gradients             DLG, Eq. 3; ``distance="squared"``
    1 - cosine of gradients + alpha TV(x)     Geiping et al., Eq. 4; ``distance="cosine"``
    Adam on the gradient's sign, within the range of pixels    Geiping et al., Section 4

Departures:
    * Squared distance: fedvlp divides it by the squared length of the gradient, so that one ``total_variation`` fits.
    * Optimizer: DLG uses L-BFGS; fedvlp uses the optimizer of Geiping et al. for both distances.
    * Result: fedvlp returns the nearest images of all steps, which the attacker knows, instead of the last ones.
    * Start: fedvlp begins with nearly grey images, because a hundred steps do not remove stronger noise.
"""

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
        gradients: Number of gradients, of the clients in turn.
        images: Number of a client's images in each gradient.
        steps: Steps of the optimizer for each gradient.
        step_size: Its first step size, in standard deviations of CLIP's normalised pixels.
        distance: Distance of gradients: the ``cosine`` of Geiping et al., or DLG's ``squared`` distance.
        total_variation: Weight alpha of the images' total variation, at least 0; DLG has none.
        phase: Phase of the gradients; the first that sends something if not given.
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
    """Search from ``start`` for images whose gradient is nearest to the one sent; the second value is its distance.

    ``gradient_of`` is the attacker's model of the client, and ``bounds`` are the least and largest value of a pixel.
    """
    images = start.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([images], lr=options.step_size)
    milestones = [round(share * options.steps) for share in MILESTONES]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)
    nearest, least = start.detach(), float("inf")
    for _ in range(options.steps):
        distance = gradient_distance(gradient_of(images), sent, options.distance)
        if distance.item() < least:
            nearest, least = images.detach().clone(), distance.item()
        objective = distance + options.total_variation * total_variation(images)
        (slope,) = torch.autograd.grad(objective, images)
        images.grad = slope.sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(*bounds)
    return nearest, least


def gradient_distance(one: Mapping[str, Tensor], sent: Mapping[str, Tensor], kind: Distance) -> Float[Tensor, ""]:
    """Compute the distance of a gradient from the one sent, over all their tensors.

    >>> sent = {"prompt": torch.tensor([2.0, 0.0])}
    >>> other = {"prompt": torch.tensor([0.0, 1.0])}
    >>> gradient_distance(other, sent, "cosine").item(), gradient_distance(other, sent, "squared").item()
    (1.0, 1.25)
    """
    first = torch.cat([part.flatten() for part in one.values()])
    second = torch.cat([sent[name].flatten() for name in one])
    if kind == "cosine":
        return 1 - F.cosine_similarity(first, second, dim=0)
    return (first - second).square().sum() / second.square().sum()


def total_variation(images: Float[Tensor, "B *pixels"]) -> Float[Tensor, ""]:
    """Compute the mean distance of neighbours in rows plus in columns; 0 without rows.

    >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 3.0]]]])).item()
    3.0
    """
    if images.ndim < 4:
        return images.new_zeros(())
    across = (images[..., 1:] - images[..., :-1]).abs().mean()
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    return across + down
