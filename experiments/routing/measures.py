"""Dependence of a route of TRIP on the image, and on chance.

Each image is routed again with another seed of the routing and the same keys, and again mirrored. A route that depends
on the image should survive both.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedvlp import TRIP

MODES = ("train", "eval")
Observed = dict[str, Tensor]
"""By mode and kind, for N images: routing weights [N, E] with ``seed``, ``other seed`` and of the ``mirror`` image,
and the share of ``kept`` tokens [N, 1]."""


@torch.no_grad()
def route_measurements(module: TRIP, batches: Iterable[Float[Tensor, "B 3 V V"]]) -> dict[str, dict[str, float | None]]:
    """Measure correlations, agreement and dropped tokens of images, with the capacities of training and evaluation.

    For the columns see README.md. A correlation is None if the weights are equal for all images.
    """
    parts = [_observe(module, images) for images in batches]
    observed: Observed = {}
    for name in parts[0]:
        observed[name] = torch.cat([part[name] for part in parts])
    return {mode: _measured(mode, observed) for mode in MODES}


def _observe(module: TRIP, images: Float[Tensor, "B 3 V V"]) -> Observed:
    """Compute the routing weights of a batch of images and of its variants, in each mode."""
    router: Any = module.router
    # A shallow copy shares keys and options; only the seed differs.
    reseeded = copy.copy(router)
    reseeded.seed = router.seed + 1
    was_training = router.training
    observed: Observed = {}
    for kind, drawn, pixels in (
        ("seed", router, images),
        ("other seed", reseeded, images),
        ("mirror", router, images.flip(-1)),
    ):
        features, tokens = module.clip.encode_image_tokens(pixels)
        constants = {"features": features, **drawn.precompute(pixels, features, tokens)}
        for mode in MODES:
            # The weights of given constants depend on no seed.
            router.train(mode == "train")
            observed[f"{mode} {kind}"] = router(constants, module.expert_features).float().cpu()
            if kind == "seed":
                # Only routers with a capacity drop tokens.
                every = torch.ones(len(images))
                observed[f"{mode} kept"] = constants.get(f"{mode}_kept", every)[:, None].float().cpu()
    router.train(was_training)
    return observed


def _measured(mode: str, observed: Observed) -> dict[str, float | None]:
    weights = observed[f"{mode} seed"]
    reseeded = observed[f"{mode} other seed"]
    mirrored = observed[f"{mode} mirror"]
    # Frequencies of each expert as the largest; the sum of squares is the agreement of two independent images.
    largest = F.one_hot(weights.argmax(dim=1), weights.shape[1]).float().mean(dim=0)
    return {
        "dropped": 1 - observed[f"{mode} kept"].mean().item(),
        "seeds r": mean_correlation(weights, reseeded),
        "seeds same": agreement(weights, reseeded),
        "chance same": largest.square().sum().item(),
        "mirror r": mean_correlation(weights, mirrored),
        "mirror same": agreement(weights, mirrored),
        "spread": weights.std(dim=0, correction=0).mean().item(),
    }


def mean_correlation(first: Float[Tensor, "N E"], second: Float[Tensor, "N E"]) -> float | None:
    """Compute Pearson's correlation over images of each expert's weight, averaged over experts."""
    # In double precision, because weights are near 1 / E with small deviations.
    first = first.double() - first.double().mean(dim=0)
    second = second.double() - second.double().mean(dim=0)
    spread = first.norm(dim=0) * second.norm(dim=0)
    # Below the limit, deviations are rounding errors of equal weights.
    if bool((spread <= 1e-12 * len(first)).any()):
        return None
    return float(((first * second).sum(dim=0) / spread).float().mean())


def agreement(first: Float[Tensor, "N E"], second: Float[Tensor, "N E"]) -> float:
    """Compute the share of images with the same largest expert, in [0, 1]; for ties, the first expert counts."""
    return (first.argmax(dim=1) == second.argmax(dim=1)).double().mean().item()
