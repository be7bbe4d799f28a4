"""Membership inference from losses: an image with a small loss is classified as a training image.

Paper: Yeom et al., "Privacy risk in machine learning: analyzing the connection to overfitting", CSF 2018, arXiv
1709.01604, Adversary 2. The paper uses one threshold; fedvlp reports the area under the curve of all thresholds.

Losses differ between domains, so members are compared only with non-members of the same domain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from scipy.stats import mannwhitneyu

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import Client
from fedvlp.tools.trained_run import RunImage, TrainedRun, evaluation_images, read_pixels, training_images
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import OpenFraction, PositiveInt
from fedvlp.utils.seeding import derive_seed

BATCH_SIZE = 64
RANKED_AT_ONCE = 256  # bootstrap samples
Losses = Float[np.ndarray, "_"]


@dataclass(frozen=True)
class MembershipOptions:
    """Options for recognising members.

    Args:
        images: Maximum number of training images per client and domain, and of other images per domain.
        resamples: Number of bootstrap samples for the interval.
        confidence: Coverage of the interval, in (0, 1).
    """

    images: PositiveInt = 500
    resamples: PositiveInt = 1000
    confidence: OpenFraction = 0.95


class Stratum(NamedTuple):
    """Losses of one domain's training images (``members``) and of its ``others``."""

    members: Losses
    others: Losses


def measure_membership(run: TrainedRun, options: MembershipOptions, seed: int) -> dict[str, Any]:
    """Measure how well losses distinguish training images from others, for each client and for all clients.

    The method must be in evaluation mode with the deployed tensors. The seed determines the sampled images and the
    bootstrap. Raises a UserError if there are no images to compare.
    """
    if run.data is None:
        raise UserError("There are no images of clients. Pass a run folder with its config.yaml, or --data.")
    role = "test" if any(entry["role"] == "test" for entry in run.data.split_table()) else "validation"
    measured = evaluation_images(run.data, role)
    images = training_images(run.data)
    _check_domains(images, measured, role)
    generator = torch.Generator().manual_seed(seed)
    # All clients are compared with the same other images.
    others = {domain: _sample(candidates, options.images, generator) for domain, candidates in measured.items()}
    start = run.module.personal_state()  # of clients that never took part
    by_model: dict[tuple[Client | None, str], list[Stratum]] = {}
    results = []
    for client, client_images in images.items():
        personal = (run.personal.get(client.id) or start) if run.module.personal else {}
        run.module.load_state({**run.deployed, **personal})
        strata = []
        for domain in dict.fromkeys(image.domain for image in client_images):
            chosen = _sample([image for image in client_images if image.domain == domain], options.images, generator)
            # Clients with the same model share the losses of the other images.
            same = by_model.setdefault((client if run.module.personal else None, domain), [])
            other_losses = same[0].others if same else image_losses(run.module, others[domain])
            same.append(Stratum(image_losses(run.module, chosen), other_losses))
            strata.append(same[-1])
        results.append(membership_result(client.name, strata, options, derive_seed(seed, client.id)))
    # Join the members of clients with the same model into one stratum per domain.
    joined = [Stratum(np.concatenate([part.members for part in same]), same[0].others) for same in by_model.values()]
    return {
        "others": role,
        "model": "each client's own" if run.module.personal else "the server's",
        "clients": results,
        "all": membership_result("all", joined, options, seed),
    }


def _check_domains(images: dict[Client, list[RunImage]], measured: dict[str, list[RunImage]], role: str) -> None:
    for client, client_images in images.items():
        for image in client_images:
            if image.domain not in measured:
                raise UserError(
                    f"To audit the training images of {client.name!r}, other images of {image.domain!r} are needed, "
                    f"but the domain has no {role} images. Choose another --data.validation_fraction or "
                    "--data.test_fraction before training, or leave membership out of --what."
                )


def _sample(images: Sequence[RunImage], count: int, generator: torch.Generator) -> list[RunImage]:
    chosen = torch.randperm(len(images), generator=generator)[:count].sort().values
    return [images[index] for index in chosen.tolist()]


@torch.no_grad()
def image_losses(module: FederatedModule, images: Sequence[RunImage]) -> Losses:
    """Compute the cross-entropy of each image under the deployed method, in nats."""
    losses = []
    for start in range(0, len(images), BATCH_SIZE):
        batch = images[start : start + BATCH_SIZE]
        labels = torch.tensor([image.label for image in batch], device=module.device)
        logits = module(read_pixels(batch).to(module.device)).float()
        losses.append(F.cross_entropy(logits, labels, reduction="none").cpu())
    return torch.cat(losses).double().numpy()


def membership_result(name: str, strata: Sequence[Stratum], options: MembershipOptions, seed: int) -> dict[str, Any]:
    """Measure how well losses distinguish members from others within strata.

    ``auc`` is the probability that a member's loss is smaller than another image's loss of the same domain; ties count
    half, and 0.5 reveals nothing. ``low`` and ``high`` are the ends of its interval. Losses are means, in nats.
    """
    members = np.concatenate([stratum.members for stratum in strata])
    others = np.concatenate([stratum.others for stratum in strata])
    low, high = interval(strata, options, np.random.default_rng(seed))
    return {
        "name": name,
        "members": len(members),
        "others": len(others),
        "member_loss": float(members.mean()),
        "other_loss": float(others.mean()),
        "auc": stratified_auc(strata),
        "low": low,
        "high": high,
    }


def stratified_auc(strata: Sequence[Stratum]) -> float:
    """Compute the share of pairs within strata with the smaller loss on the member; ties count half."""
    wins = sum(float(_wins(stratum.members[None], stratum.others[None])[0]) for stratum in strata)
    return wins / _num_pairs(strata)


def interval(
    strata: Sequence[Stratum], options: MembershipOptions, generator: np.random.Generator
) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of the AUC; each stratum's members and others are resampled."""
    wins = np.zeros(options.resamples)
    for stratum in strata:
        for start in range(0, options.resamples, RANKED_AT_ONCE):
            rows = min(RANKED_AT_ONCE, options.resamples - start)
            members = generator.choice(stratum.members, (rows, len(stratum.members)))
            others = generator.choice(stratum.others, (rows, len(stratum.others)))
            wins[start : start + rows] += _wins(members, others)
    tail = 50 * (1 - options.confidence)  # in percent
    low, high = np.percentile(wins / _num_pairs(strata), [tail, 100 - tail])
    return float(low), float(high)


def _num_pairs(strata: Sequence[Stratum]) -> int:
    return sum(len(stratum.members) * len(stratum.others) for stratum in strata)


def _wins(
    members: Float[np.ndarray, "rows members"], others: Float[np.ndarray, "rows others"]
) -> Float[np.ndarray, "rows"]:
    """Count, row by row, the pairs in which the member has the smaller loss, ties as half (Mann-Whitney U)."""
    # SciPy counts pairs in which the first value is larger; its method affects only the p-value.
    return mannwhitneyu(others, members, axis=1, method="asymptotic").statistic
