"""How much a route of TRIP depends on the image, and how much on where its clustering happened to start.

Each image is routed again with another seed of all that is random in routing, with the same keys, and again
mirrored: what a route says of the image should survive both.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedvlp.methods import TRIP

Value = str | int | float | list[float | None] | list[float] | None
"""Of a measurement."""

Observed = dict[str, Tensor]
"""Of N images: their `weights` [N, E], those `reseeded` and `mirrored`, and the share of their tokens `kept` [N, 1]."""

MODES = ("train", "eval")
MEANING = {
    "capacity": "the capacity factor, of training and of evaluation; - where there is no limit",
    "dropped": "mean share of an image's tokens that found no room in their cluster",
    "seeds r": "correlation over images of an expert's weight under two seeds of the clustering, mean over experts; "
    "1 where nothing is random",
    "seeds same": "share of images with the same largest expert under both seeds",
    "chance same": "the same share for two images that have nothing to do with each other",
    "mirror r": "the same correlation between each image and its mirror image, under one seed",
    "mirror same": "share of images with the same largest expert as their mirror image, under one seed",
    "spread": "standard deviation over images of an expert's weight, mean over experts",
    "load": "mean weight of each expert",
    "largest": "share of images in which each expert is the largest",
    "r of experts": "the correlation under two seeds, for each expert",
}


@torch.no_grad()
def route_measurements(
    module: TRIP, domains: Mapping[str, Iterable[Float[Tensor, "B 3 V V"]]]
) -> list[dict[str, Value]]:
    """Returns correlations, agreement, dropped tokens and loads, under both capacities, by domain and over all.

    Args:
        module: Whose router is measured.
        domains: Each domain's images, in batches on the module's device.
    """
    observed: dict[str, dict[str, Observed]] = {}
    for name, batches in domains.items():
        observed[name] = _joined([_observe(module, images) for images in batches])
    if len(observed) > 1:
        observed["all domains"] = _joined(list(observed.values()))
    rows: list[dict[str, Value]] = []
    for mode in MODES:
        rows += [_row(module, name, mode, of_modes[mode]) for name, of_modes in observed.items()]
    return rows


def _observe(module: TRIP, images: Float[Tensor, "B 3 V V"]) -> dict[str, Observed]:
    """For each mode, the routing weights of a batch of images and of its variants."""
    router: Any = module.router
    reseeded = copy.copy(router)
    reseeded.seed = router.seed + 1
    mirrored = images.flip(-1)
    straight_features = module.clip.encode_image_tokens(images)
    mirrored_features = module.clip.encode_image_tokens(mirrored)
    constants = {
        "weights": _constants(router, images, straight_features),
        "reseeded": _constants(reseeded, images, straight_features),
        "mirrored": _constants(router, mirrored, mirrored_features),
    }
    was_training = router.training
    observed = {}
    for mode in MODES:
        router.train(mode == "train")
        # how constants become weights depends on no seed
        seen = {view: router(of_view, module.expert_features).float().cpu() for view, of_view in constants.items()}
        every = torch.ones(len(images))
        seen["kept"] = constants["weights"].get(f"{mode}_kept", every)[:, None].float().cpu()
        observed[mode] = seen
    router.train(was_training)
    return observed


def _constants(
    router: Any, images: Float[Tensor, "B 3 V V"], encoded: tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]
) -> dict[str, Tensor]:
    features, tokens = encoded
    return {"features": features, **router.precompute(images, features, tokens)}


def _joined(parts: Sequence[dict[str, Observed]]) -> dict[str, Observed]:
    """The observations of several batches or domains as one."""
    joined: dict[str, Observed] = {}
    for mode in MODES:
        of_mode = [part[mode] for part in parts]
        joined[mode] = {}
        for name in of_mode[0]:
            joined[mode][name] = torch.cat([seen[name] for seen in of_mode])
    return joined


def _row(module: TRIP, domain: str, mode: str, seen: Observed) -> dict[str, Value]:
    """One row of the table."""
    options: Any = module.router.options
    weights = seen["weights"]
    largest = F.one_hot(weights.argmax(dim=1), weights.shape[1]).float().mean(dim=0)
    seeds = correlations(weights, seen["reseeded"])
    mirror = correlations(weights, seen["mirrored"])
    return {
        "domain": domain,
        "mode": mode,
        "images": len(weights),
        "capacity": options.train_capacity if mode == "train" else options.eval_capacity,
        "dropped": 1 - seen["kept"].mean().item(),
        "seeds r": _defined(seeds.mean()),
        "seeds same": agreement(weights, seen["reseeded"]),
        "chance same": largest.square().sum().item(),
        "mirror r": _defined(mirror.mean()),
        "mirror same": agreement(weights, seen["mirrored"]),
        "spread": weights.std(dim=0, correction=0).mean().item(),
        "load": weights.mean(dim=0).tolist(),
        "largest": largest.tolist(),
        "r of experts": [_defined(value) for value in seeds],
    }


def _defined(value: Tensor) -> float | None:
    # A weight that is equal for all images has no correlation.
    return None if bool(value.isnan()) else value.item()


def correlations(first: Float[Tensor, "N E"], second: Float[Tensor, "N E"]) -> Float[Tensor, "E"]:
    """Returns Pearson's correlation over images of each expert's weight; nan where a weight is the same for all images.

    Example:
        >>> one = torch.tensor([[0.1, 0.5], [0.3, 0.5], [0.5, 0.5]])
        >>> correlations(one, 1 - 2 * one)
        tensor([-1., nan])
    """
    first = first.double() - first.double().mean(dim=0)
    second = second.double() - second.double().mean(dim=0)
    spread = first.norm(dim=0) * second.norm(dim=0)
    return torch.where(spread > 1e-12 * len(first), (first * second).sum(dim=0) / spread, torch.nan).float()


def agreement(first: Float[Tensor, "N E"], second: Float[Tensor, "N E"]) -> float:
    """Returns the share of images that have the same largest expert, in [0, 1]; the first of equals counts.

    Example:
        >>> agreement(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([[0.3, 0.7], [0.1, 0.9]]))
        0.5
    """
    return (first.argmax(dim=1) == second.argmax(dim=1)).double().mean().item()
