"""FedDG-GA: domains whose accuracy falls most where clients' tensors are averaged count more in the next average.

Paper: Zhang et al., "Federated Domain Generalization with Generalization Adjustment", CVPR 2023.

Symbols: a_k -> ``weights`` in the server's memory, from 1 / K; G_k -> gap: accuracy of the client's tensors after its
training, less that of the average of the same round, both on its own validation images; d -> ``step``, R -> ``rounds``.
    d^r = (1 - r / R) d                                                   :meth:`FedDGGA.adjusted`
    a_k <- a_k + d^r / K (G_k - mean_j G_j) / max_j |G_j - mean_j G_j|    :meth:`FedDGGA.adjusted`
    a_k <- clip(a_k, 0, 1), a_k <- a_k / sum_j a_j                        :meth:`FedDGGA.adjusted`
    theta <- sum_k a_k theta_k                                            :meth:`FedDGGA.before_aggregation`

What is sent: a client uploads two numbers more: G_k of its last round, and whether it has one. It keeps the accuracy
after its training, and measures the average on its next download. Nothing is measured on a held-out domain.

Departures:
    * Step size: the released code divides the step by its 3 clients; fedvlp divides it by the number of clients. Both
      divide by the largest absolute gap, so that no weight moves farther.
    * Mean gap: the released code does not subtract it (``centered`` false), so equal gaps change unequal weights.
    * Schedule: the released code counts R + 1 rounds from 0 with the step d (1 - (r - 1) / R), at first above d.
    * Risk: the released code offers error rates and losses; fedvlp uses error rates.
    * Cohorts: a client without a previous round has no gap and keeps its weight; then all weights are normalised. The
      average of a cohort normalises its clients' weights again.
    * Ties: gaps within 1e-12 of their mean (of 0 if not centered) change no weight, since rounding errors would become
      full steps: gaps of n images differ by 1 / n^2 or more. In the released code, zero gaps make the weights NaN.
    * Rounding: weights are multiples of 1e-9 and at least 1e-9, so that a single client still counts.
    * Pauses: a client that skips rounds compares its last tensors with the average that it finds.
    * Shared domains: clients with images of one domain measure on the same validation images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedvlp.core.state import ClientUpdate, State
from fedvlp.training.add_ons.base import AddOn, Finished, LocalContext, ServerRound
from fedvlp.utils.ranges import FractionAboveZero

# Weights are rounded to one part of so many, which keeps sums of them exact.
COUNTED = 10**9

# Gaps that are no farther from their mean are tied.
TIE = 1e-12


@dataclass(frozen=True)
class FedDGGA(AddOn):
    """Weighs clients by how far averaging takes them from what they had learned.

    Args:
        step: How far weights move in the first round, in (0, 1], divided by the number of clients; it falls to 0.
        centered: Whether the mean of the gaps is taken away from each, as in the paper.
    """

    step: FractionAboveZero = 0.2
    centered: bool = True

    needs_accuracy = True
    needs_rounds = True
    sets_weights = True

    def begin(self, local: LocalContext) -> None:
        """Measure the average that the client downloaded."""
        local.scratch["accuracy"] = torch.tensor(local.accuracy(), dtype=torch.float64)

    def finish(self, local: LocalContext, upload: State) -> Finished:
        """Send G_k and whether there is one, and keep the accuracy after training."""
        # A client that never trained has no gap, which is not the same as a gap of zero.
        gap = [0.0, 0.0]
        if local.kept:
            gap = [local.kept["accuracy"].item() - local.scratch["accuracy"].item(), 1.0]
        # In float64: what float32 takes of an accuracy differs from client to client, and would be their gap.
        accuracy = torch.tensor([local.accuracy()], dtype=torch.float64)
        return Finished(upload, {"gap": torch.tensor(gap, dtype=torch.float64)}, {"accuracy": accuracy})

    def sent_like(self, averaged: State) -> State:
        """Two numbers."""
        return {"gap": torch.zeros(2, dtype=torch.float64)}

    def before_aggregation(self, server: ServerRound) -> tuple[Sequence[ClientUpdate], State]:
        """Updates with weights a_k, and these."""
        ids = [client.id for client in server.clients]
        weights = server.memory.get("weights", torch.full((len(ids),), 1 / len(ids), dtype=torch.float64))
        gaps: dict[int, float] = {}
        for update, sent in zip(server.updates, server.sent, strict=True):
            # A flag that travelled as a number.
            if sent["gap"][1] > 0.5:
                gaps[ids.index(update.client.id)] = sent["gap"][0].item()
        weights = self.adjusted(weights, gaps, 1 - (server.round - 1) / max(1, server.rounds))
        by_id = dict(zip(ids, weights.tolist(), strict=True))
        weighted: list[ClientUpdate] = []
        for update in server.updates:
            # Whole numbers, which every strategy can sum exactly in any order.
            counted = int(0.5 + COUNTED * by_id[update.client.id])
            weighted.append(replace(update, weight=max(1, counted)))
        return weighted, {"weights": weights}

    def adjusted(self, weights: Tensor, gaps: Mapping[int, float], share: float) -> Tensor:
        """Compute the weights [K] after a round from a, the gaps G_k by the client's position, and 1 - r / R."""
        if not gaps:
            return weights
        places = list(gaps)
        differences = torch.tensor([gaps[place] for place in places], dtype=torch.float64)
        if self.centered:
            differences = differences - differences.mean()
        largest = differences.abs().max()
        if largest <= TIE:
            return weights
        moved = weights.clone()
        moved[places] += self.step * share / len(weights) * differences / largest
        # A weight below zero would draw the average away from a client.
        moved = moved.clamp(0, 1)
        return moved / moved.sum() if moved.sum() > 0 else torch.full_like(moved, 1 / len(moved))
