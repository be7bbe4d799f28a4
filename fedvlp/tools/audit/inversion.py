"""Recovery of images from a gradient: a search for images with the most similar gradient.

Papers: Zhu et al., "Deep leakage from gradients", NeurIPS 2019, arXiv 1906.08935 (DLG). Geiping et al., "Inverting
gradients - how easy is it to break privacy in federated learning?", NeurIPS 2020, arXiv 2003.14053.

Symbols: x* -> ``images``; grad L(x, y) -> ``gradient``; alpha -> ``total_variation``.
    squared distance of gradients             DLG, Eq. 3; ``distance="squared"``
    1 - cosine of gradients + alpha TV(x)     Geiping et al., Eq. 4; ``distance="cosine"``
    Adam on the gradient's sign, within the range of pixels    Geiping et al., Section 4

Deviations:
    * Squared distance: fedvlp divides it by the gradient's squared length, so that one ``total_variation`` suits both.
    * Optimizer: DLG uses L-BFGS; fedvlp uses the optimizer of Geiping et al. for both distances.
    * Result: The papers use the images of the last step; fedvlp uses the step with the smallest distance, because the
      attacker knows the distances.
    * Start: The images start nearly grey, because a hundred steps do not remove stronger noise.
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
"""Shares of the steps after which the step size is divided by ten, as in the released code of Geiping et al."""

Distance = Literal["cosine", "squared"]
GradientFunction = Callable[[Tensor], Mapping[str, Tensor]]
"""Maps images to their gradient, which can be differentiated with respect to the images."""


@dataclass(frozen=True)
class InversionOptions:
    """Options for recovering images from gradients.

    Args:
        gradients: Number of gradients, taken from each client in turn.
        images: Number of a client's images per gradient.
        steps: Steps of the optimizer per gradient.
        step_size: Initial step size, in standard deviations of CLIP's normalised pixels.
        distance: Distance of gradients: ``cosine`` (Geiping et al.) or ``squared`` (DLG).
        total_variation: Weight alpha of the images' total variation, at least 0; DLG has none.
        phase: Phase of the gradients; by default the first in which clients send parameters.
    """

    gradients: PositiveInt = 2
    images: PositiveInt = 1
    steps: PositiveInt = 60
    step_size: PositiveFloat = 0.1
    distance: Distance = "cosine"
    total_variation: NonNegativeFloat = 0.3
    phase: str | None = None


def invert(
    compute_gradient: GradientFunction,
    target: Mapping[str, Tensor],
    start: Float[Tensor, "B *pixels"],
    bounds: tuple[Tensor, Tensor],
    options: InversionOptions,
) -> tuple[Float[Tensor, "B *pixels"], float]:
    """Search from ``start`` for the images with the gradient nearest to ``target``; also return its distance.

    ``compute_gradient`` is the attacker's model of the client; ``bounds`` are the smallest and largest pixel values.
    """
    images = start.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([images], lr=options.step_size)
    milestones = [round(share * options.steps) for share in MILESTONES]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)
    nearest, least = start.detach(), float("inf")
    for _ in range(options.steps):
        distance = gradient_distance(compute_gradient(images), target, options.distance)
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


def gradient_distance(found: Mapping[str, Tensor], target: Mapping[str, Tensor], kind: Distance) -> Float[Tensor, ""]:
    """Compute the distance of a gradient from the sent gradient ``target``, over all tensors.

    >>> target = {"prompt": torch.tensor([2.0, 0.0])}
    >>> other = {"prompt": torch.tensor([0.0, 1.0])}
    >>> gradient_distance(other, target, "cosine").item(), gradient_distance(other, target, "squared").item()
    (1.0, 1.25)
    """
    first = torch.cat([part.flatten() for part in found.values()])
    second = torch.cat([target[name].flatten() for name in found])
    if kind == "cosine":
        return 1 - F.cosine_similarity(first, second, dim=0)
    return (first - second).square().sum() / second.square().sum()


def total_variation(images: Float[Tensor, "B *pixels"]) -> Float[Tensor, ""]:
    """Compute the mean distance of neighbouring pixels in rows plus in columns; 0 for images without rows.

    >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 3.0]]]])).item()
    3.0
    """
    if images.ndim < 4:
        return images.new_zeros(())
    across = (images[..., 1:] - images[..., :-1]).abs().mean()
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    return across + down
