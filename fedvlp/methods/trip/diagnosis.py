"""How much a route depends on the image, and how much on where its clustering happened to start.

Each image is routed again with another seed of all that is random in routing, with the same keys, and once more in
the mirror: what a route says of the image should survive both.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedvlp.clip import CLIP
from fedvlp.core.diagnosis import Diagnosis, Value
from fedvlp.methods.trip.options import Experts, RouterOptions
from fedvlp.methods.trip.route_statistics import agreement, correlations
from fedvlp.methods.trip.routers import Router

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
def diagnose_routes(
    router: Router, clip: CLIP, experts: Experts, domains: Mapping[str, Iterable[Float[Tensor, "B 3 V V"]]]
) -> Diagnosis:
    """Returns correlations, agreement, dropped tokens and loads, under both capacities, by domain and over all.

    Args:
        router: Whose routes are looked at.
        clip: The frozen CLIP.
        experts: Gives the experts' place in the joint space.
        domains: Each domain's images, in batches on the router's device.
    """
    observed: dict[str, dict[str, Observed]] = {}
    for name, batches in domains.items():
        observed[name] = _joined([_observe(router, clip, experts, images) for images in batches])
    if len(observed) > 1:
        observed["all domains"] = _joined(list(observed.values()))
    rows = []
    for mode in MODES:
        rows += [_row(router.options, name, mode, of_modes[mode]) for name, of_modes in observed.items()]
    return Diagnosis("routing", MEANING, rows)


def _observe(router: Router, clip: CLIP, experts: Experts, images: Float[Tensor, "B 3 V V"]) -> dict[str, Observed]:
    """For each mode, what is seen of a batch's routes."""
    reseeded = copy.copy(router)
    reseeded.seed = router.seed + 1
    mirrored = images.flip(-1)
    straight_features = clip.encode_image_tokens(images)
    mirrored_features = clip.encode_image_tokens(mirrored)
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
        seen = {view: router(known, experts).float().cpu() for view, known in constants.items()}
        every = torch.ones(len(images))
        seen["kept"] = constants["weights"].get(f"{mode}_kept", every)[:, None].float().cpu()
        observed[mode] = seen
    router.train(was_training)
    return observed


def _constants(
    router: Router, images: Float[Tensor, "B 3 V V"], encoded: tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]
) -> dict[str, Tensor]:
    features, tokens = encoded
    return {"features": features, **router.prepare(images, features, tokens)}


def _joined(parts: Sequence[dict[str, Observed]]) -> dict[str, Observed]:
    """The observations of several batches or domains as one."""
    joined: dict[str, Observed] = {}
    for mode in MODES:
        of_mode = [part[mode] for part in parts]
        joined[mode] = {}
        for name in of_mode[0]:
            joined[mode][name] = torch.cat([seen[name] for seen in of_mode])
    return joined


def _row(options: RouterOptions, domain: str, mode: str, seen: Observed) -> dict[str, Value]:
    """One row of the table."""
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
        "seeds r": _known(seeds.mean()),
        "seeds same": agreement(weights, seen["reseeded"]),
        "chance same": largest.square().sum().item(),
        "mirror r": _known(mirror.mean()),
        "mirror same": agreement(weights, seen["mirrored"]),
        "spread": weights.std(dim=0, correction=0).mean().item(),
        "load": weights.mean(dim=0).tolist(),
        "largest": largest.tolist(),
        "r of experts": [_known(value) for value in seeds],
    }


def _known(value: Tensor) -> float | None:
    """A number, or None where it is not defined."""
    return None if bool(value.isnan()) else value.item()
