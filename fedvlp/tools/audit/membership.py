"""Who was trained on, by the loss: an image on which a method's loss is small is taken for a training image.

Paper: Yeom et al., "Privacy risk in machine learning: analyzing the connection to overfitting", CSF 2018, arXiv
1709.01604, Adversary 2. In place of its one threshold the area under the curve of all thresholds is given.

Images of different domains differ in their losses whether they were trained on or not. Members are therefore compared
with non-members of the same domain alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from scipy.stats import rankdata
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import Client
from fedvlp.tools.audit.images import ImageGroup, RunImages
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import OpenFraction, PositiveInt
from fedvlp.utils.seeding import derive_seed

BATCH_SIZE = 64
Losses = Float[np.ndarray, "_"]


@dataclass(frozen=True)
class MembershipOptions:
    """How members are told from others.

    Args:
        images: The most training images of a client and domain, and the most others of a domain, that are looked at.
        resamples: How many bootstrap samples the interval is made of.
        confidence: Coverage of the interval, in (0, 1).
    """

    images: PositiveInt = 500
    resamples: PositiveInt = 1000
    confidence: OpenFraction = 0.95


@dataclass(frozen=True)
class Stratum:
    """Losses of one domain.

    Attributes:
        members: of images that were trained on.
        others: of images that nobody trained on.
    """

    members: Losses
    others: Losses


@dataclass(frozen=True)
class MembershipResult:
    """How well members are told from others.

    Attributes:
        name: whose training images they are.
        members: their number.
        others: the number of other images.
        member_loss: mean loss of members, in nats.
        other_loss: mean loss of others.
        auc: the probability that a member's loss is smaller than another's of the same domain, half of ties; 0.5 says
            nothing of membership.
        low: lower end of its interval.
        high: upper end of its interval.
    """

    name: str
    members: int
    others: int
    member_loss: float
    other_loss: float
    auc: float
    low: float
    high: float


def measure_membership(
    module: FederatedModule,
    images: RunImages,
    state_of: Callable[[Client], Mapping[str, Tensor]],
    options: MembershipOptions,
    seed: int,
) -> list[MembershipResult]:
    """Returns the result of each client, and that of all clients under the name ``all``.

    Args:
        module: the method, in evaluation mode.
        images: of the run.
        state_of: what is loaded before a client's images are looked at.
        options: how.
        seed: of the images that are drawn, and of the bootstrap.

    Raises:
        UserError: if a client has images of a domain of which nobody left out any.
    """
    _check_domains(images)
    generator = torch.Generator().manual_seed(seed)
    others = {domain: group.sample(options.images, generator) for domain, group in images.measured.items()}
    by_model: dict[tuple[Client | None, str], list[Stratum]] = {}
    results = []
    for client, groups in images.training.items():
        module.load_state(dict(state_of(client)))
        strata = []
        for group in groups:
            model = client if module.personal else None
            known = by_model.setdefault((model, group.domain), [])
            members = image_losses(module, group.sample(options.images, generator))
            # Clients that share a model share the losses of the images that nobody trained on.
            of_others = known[0].others if known else image_losses(module, others[group.domain])
            known.append(Stratum(members, of_others))
            strata.append(known[-1])
        results.append(membership_result(client.name, strata, options, derive_seed(seed, client.id)))
    everybody = [_joined(strata) for strata in by_model.values()]
    return [*results, membership_result("all", everybody, options, seed)]


def _check_domains(images: RunImages) -> None:
    """Refuses clients whose images there is nothing to compare with."""
    for client, groups in images.training.items():
        for group in groups:
            if group.domain not in images.measured:
                raise UserError(
                    f"Training images of {client.name!r} are compared with images of {group.domain!r} on which nobody "
                    f"trained, but no {images.role} image is of that domain. Choose another --data.validation_fraction "
                    "or --data.test_fraction before training, or leave membership out of --what."
                )


def _joined(strata: Sequence[Stratum]) -> Stratum:
    """Returns the members of several clients, beside the same others."""
    return Stratum(np.concatenate([stratum.members for stratum in strata]), strata[0].others)


@torch.no_grad()
def image_losses(module: FederatedModule, group: ImageGroup) -> Losses:
    """Returns the cross-entropy of each image under the deployed method, in nats."""
    clip: Any = module.clip
    device = next(clip.parameters()).device
    labels = group.labels
    losses = []
    for start in range(0, len(group), BATCH_SIZE):
        chosen = range(start, min(start + BATCH_SIZE, len(group)))
        logits = module(group.read(chosen).to(device)).float()
        of_batch = labels[start : start + BATCH_SIZE].to(device)
        losses.append(F.cross_entropy(logits, of_batch, reduction="none").cpu())
    found: Losses = torch.cat(losses).double().numpy()
    return found


def membership_result(name: str, strata: Sequence[Stratum], options: MembershipOptions, seed: int) -> MembershipResult:
    """Returns how well losses tell members from others within strata."""
    members = np.concatenate([stratum.members for stratum in strata])
    others = np.concatenate([stratum.others for stratum in strata])
    low, high = interval(strata, options, np.random.default_rng(seed))
    return MembershipResult(
        name=name,
        members=len(members),
        others=len(others),
        member_loss=float(members.mean()),
        other_loss=float(others.mean()),
        auc=stratified_auc(strata),
        low=low,
        high=high,
    )


def stratified_auc(strata: Sequence[Stratum]) -> float:
    """Returns the share of pairs, each of one stratum, in which the member's loss is the smaller; half of ties.

    >>> stratified_auc([Stratum(np.array([1.0, 2.0]), np.array([1.5, 2.0]))])
    0.625
    """
    wins = 0.0
    pairs = 0
    for stratum in strata:
        wins += float(_wins(stratum.members[None], stratum.others[None])[0])
        pairs += len(stratum.members) * len(stratum.others)
    return wins / pairs


def interval(
    strata: Sequence[Stratum], options: MembershipOptions, generator: np.random.Generator
) -> tuple[float, float]:
    """Returns the percentile bootstrap interval of the AUC; members and others of each stratum are drawn anew."""
    wins = np.zeros(options.resamples)
    pairs = 0
    for stratum in strata:
        wins += _resampled_wins(stratum, options.resamples, generator)
        pairs += len(stratum.members) * len(stratum.others)
    tail = 50 * (1 - options.confidence)  # in percent
    low, high = np.percentile(wins / pairs, [tail, 100 - tail])
    return float(low), float(high)


def _resampled_wins(
    stratum: Stratum, resamples: int, generator: np.random.Generator, rows: int = 256
) -> Float[np.ndarray, "resamples"]:
    """Returns the wins of each bootstrap sample, of which a few are ranked at once, so that it takes little memory."""
    found = []
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        members = generator.choice(stratum.members, (count, len(stratum.members)))
        others = generator.choice(stratum.others, (count, len(stratum.others)))
        found.append(_wins(members, others))
    return np.concatenate(found)


def _wins(
    members: Float[np.ndarray, "rows members"], others: Float[np.ndarray, "rows others"]
) -> Float[np.ndarray, "rows"]:
    """Returns, row by row, how many pairs the members win by a smaller loss: Mann and Whitney's U, by ranks."""
    ranks = rankdata(np.concatenate([members, others], axis=1), axis=1)
    count = members.shape[1]
    lost = ranks[:, :count].sum(axis=1) - count * (count + 1) / 2
    won: Float[np.ndarray, "rows"] = count * others.shape[1] - lost
    return won
