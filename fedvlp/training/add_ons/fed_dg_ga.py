"""FedDG-GA: domains that lose the most accuracy by averaging get a larger weight in the next average.

Paper: Zhang et al., "Federated Domain Generalization with Generalization Adjustment", CVPR 2023.

Symbols: a_k -> ``weights`` in the server's memory, initially 1 / K; d -> ``step``; R -> ``rounds``. The gap G_k is the
accuracy of the client's tensors after training minus the accuracy of the round's average, on its validation images.
    d^r = (1 - r / R) d                                                   :meth:`FedDGGA.adjust_weights`
    a_k <- a_k + d^r / K (G_k - mean_j G_j) / max_j |G_j - mean_j G_j|    :meth:`FedDGGA.adjust_weights`
    a_k <- clip(a_k, 0, 1), a_k <- a_k / sum_j a_j                        :meth:`FedDGGA.adjust_weights`
    theta <- sum_k a_k theta_k                                            :meth:`FedDGGA.before_aggregation`

Communication: a client also uploads two numbers: G_k of its previous round, and whether it has a gap. It stores the
accuracy after its training, and measures the average at its next download. Held-out domains are not used.

Deviations:
    * Step size: The released code divides the step by 3, its number of clients; fedvlp divides it by the actual number
      of clients. Both divide by the largest absolute gap, which bounds the change of a weight.
    * Mean gap: The released code does not subtract it; fedvlp follows the paper unless ``centered`` is false.
    * Schedule: The released code uses d (1 - (r - 1) / R) in R + 1 rounds from 0, at first above d; fedvlp follows the
      paper.
    * Risk: The released code offers error rates and losses; fedvlp uses error rates.
    * Cohorts: In fedvlp a client without a previous round has no gap and keeps its weight before all weights are
      normalized. The average of a cohort normalizes its clients' weights again.
    * Ties: The released code divides by zero gaps, which makes the weights NaN; fedvlp then changes no weight. Gaps tie
      if all are within 1e-12 of their mean (of 0 if not centered), where rounding errors would become full steps. Real
      gaps of n images differ by 1 / n^2 or more.
    * Rounding: Weights are rounded to multiples of 1e-9, at least 1e-9, so that their sums are exact and not 0.
    * Skipped rounds: In fedvlp a client compares its previous tensors with the next average that it downloads.
    * Shared domains: In fedvlp clients of one domain are evaluated on the same validation images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedvlp.core.state import ClientUpdate, State
from fedvlp.training.add_ons.base import AddOn, LocalContext, LocalResult, ServerRound
from fedvlp.utils.ranges import FractionAboveZero

# Weights are rounded to integers of this unit, whose sums are exact.
UNITS = 10**9

# Gaps within this distance of their mean count as equal.
TIE = 1e-12


@dataclass(frozen=True)
class FedDGGA(AddOn):
    """Client weights that follow the accuracy lost by averaging the clients' tensors.

    Args:
        step: Largest change of a weight in the first round, in (0, 1], divided by the number of clients; decays to 0.
        centered: Whether to subtract the mean gap from all gaps, as in the paper.
    """

    step: FractionAboveZero = 0.2
    centered: bool = True

    needs_accuracy = True
    needs_rounds = True
    sets_weights = True

    def begin(self, local: LocalContext) -> None:
        """Measure the average that the client downloaded."""
        local.scratch["accuracy"] = torch.tensor(local.accuracy(), dtype=torch.float64)

    def finish(self, local: LocalContext, upload: State) -> LocalResult:
        """Upload G_k and whether it exists, and store the accuracy after training on the client."""
        # A client that never trained has no gap, which differs from a gap of zero.
        gap = [0.0, 0.0]
        if local.memory:
            gap = [local.memory["accuracy"].item() - local.scratch["accuracy"].item(), 1.0]
        # In float64, because float32 rounding errors would look like gaps.
        accuracy = torch.tensor([local.accuracy()], dtype=torch.float64)
        return LocalResult(upload, {"gap": torch.tensor(gap, dtype=torch.float64)}, {"accuracy": accuracy})

    def upload_template(self, averaged: State) -> State:
        """Make two numbers: G_k, and 1 if it exists."""
        return {"gap": torch.zeros(2, dtype=torch.float64)}

    def before_aggregation(self, server: ServerRound) -> tuple[Sequence[ClientUpdate], State]:
        """Set the updates' weights to the new a_k, and store these."""
        ids = [client.id for client in server.clients]
        weights = server.memory.get("weights", torch.full((len(ids),), 1 / len(ids), dtype=torch.float64))
        gaps: dict[int, float] = {}
        for update, sent in zip(server.updates, server.sent, strict=True):
            # The second number is a flag.
            if sent["gap"][1] > 0.5:
                gaps[ids.index(update.client.id)] = sent["gap"][0].item()
        weights = self.adjust_weights(weights, gaps, 1 - (server.round - 1) / max(1, server.rounds))
        by_id = dict(zip(ids, weights.tolist(), strict=True))
        weighted: list[ClientUpdate] = []
        for update in server.updates:
            # Integers, because their sums are exact in any order.
            weight = int(0.5 + UNITS * by_id[update.client.id])
            weighted.append(replace(update, weight=max(1, weight)))
        return weighted, {"weights": weights}

    def adjust_weights(self, weights: Tensor, gaps: Mapping[int, float], share: float) -> Tensor:
        """Compute the new weights [K] from the old ones, the gaps G_k by client index, and ``share``, 1 - r / R."""
        if not gaps:
            return weights
        indices = list(gaps)
        differences = torch.tensor([gaps[index] for index in indices], dtype=torch.float64)
        if self.centered:
            differences = differences - differences.mean()
        largest = differences.abs().max()
        if largest <= TIE:
            return weights
        moved = weights.clone()
        moved[indices] += self.step * share / len(weights) * differences / largest
        # A negative weight would push the average away from a client.
        moved = moved.clamp(0, 1)
        return moved / moved.sum() if moved.sum() > 0 else torch.full_like(moved, 1 / len(moved))
