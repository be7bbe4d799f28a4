"""How much a route depends on the image, and how much on where its clustering happened to start.

Each image is routed again with another seed of all that is random in routing, with the same keys, and once more in
the mirror: what a route says of the image should survive both.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from fedvlp.core.diagnosis import Diagnosis, Value
from fedvlp.methods.trip.route_statistics import agreement, correlations

if TYPE_CHECKING:
    from fedvlp.methods.trip.trip import TRIP

Observed = dict[str, Float[Tensor, "N E"]]

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
def diagnose_routes(module: TRIP, domains: Mapping[str, Iterable[Float[Tensor, "B 3 H V"]]]) -> Diagnosis:
    """Returns correlations, agreement, dropped tokens and loads, under both capacities, by domain and over all.

    Args:
        module: whose routes are looked at, with the keys and experts that it holds.
        domains: each domain's images, in batches on the module's device.
    """
    observed = {name: _joined([_observe(module, images) for images in batches]) for name, batches in domains.items()}
    if len(observed) > 1:
        observed["all domains"] = _joined(list(observed.values()))
    rows = [_row(module, name, mode, of[mode]) for mode in MODES for name, of in observed.items()]
    return Diagnosis("routing", MEANING, rows)


def _observe(module: TRIP, images: Float[Tensor, "B 3 H V"]) -> dict[str, Observed]:
    """Returns for each mode a batch's weights, those under another seed and in the mirror, and the share kept."""
    router, again = module.router, copy.copy(module.router)
    again.seed = router.seed + 1
    straight, mirrored = (module.clip.encode_image_tokens(pixels) for pixels in (images, images.flip(-1)))
    views = {
        "weights": (router, images, straight),
        "reseeded": (again, images, straight),
        "mirrored": (router, images.flip(-1), mirrored),
    }
    observed: dict[str, Observed] = {mode: {} for mode in MODES}
    for view, (chosen, pixels, (features, tokens)) in views.items():
        constants = {"features": features, **chosen.prepare(pixels, features, tokens)}
        for mode, seen in observed.items():
            weights = chosen.train(mode == "train")(constants, module.expert_features)
            seen[view] = weights.float().cpu()
            kept = constants.get(f"{mode}_kept", weights.new_ones(len(weights)))
            seen.setdefault("kept", kept[:, None].float().cpu())
    router.train(module.training)
    return observed


def _joined(parts: Sequence[dict[str, Observed]]) -> dict[str, Observed]:
    """Returns the observations of several batches or domains as one."""
    return {mode: {name: torch.cat([part[mode][name] for part in parts]) for name in parts[0][mode]} for mode in MODES}


def _row(module: TRIP, domain: str, mode: str, seen: Observed) -> dict[str, Value]:
    """Returns one row of the table."""
    weights, options = seen["weights"], module.router.options
    largest = torch.nn.functional.one_hot(weights.argmax(dim=1), weights.shape[1]).float().mean(dim=0)
    seeds, mirror = (correlations(weights, seen[view]) for view in ("reseeded", "mirrored"))
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
    """Returns a number, or None where it is not defined."""
    return None if bool(value.isnan()) else value.item()
