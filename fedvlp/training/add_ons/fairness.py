"""QFedAvg and AFL: clients with a larger loss get a larger weight in the average, so that no client is left behind.

Papers: q-FedAvg: Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020, Algorithm 2, which minimizes
sum_k p_k F_k(w)^{q+1} / (q + 1) (Eq. 2). AFL: Mohri et al., "Agnostic Federated Learning", ICML 2019, Section 4,
which minimizes max_lambda sum_k lambda_k F_k(w) over all mixtures lambda.

Symbols: w -> ``shared``; w_k -> ``updates``; p_k -> ``weights``; F_k(w) -> the uploaded loss; L -> ``lipschitz``;
lambda -> the server's memory, at first p_k; gamma -> ``step``.
    h_k = q F_k^{q-1} L^2 |w - w_k|^2 + L F_k^q                      :meth:`QFedAvg.before_aggregation`
    w <- w - sum_k p_k F_k^q L (w - w_k) / sum_k p_k h_k             :meth:`QFedAvg.before_aggregation`
    w <- sum_k lambda_k w_k; lambda <- project(lambda + gamma F)     :meth:`AFL.before_aggregation`

Deviations:
    * Loss: F_k is the cross-entropy on the client's training images, without regularizers of the method.
    * q-FedAvg's weights: The paper samples clients with probability p_k; fedvlp uses the method's weights p_k.
    * AFL's local steps: The paper takes one gradient step per round; fedvlp averages w_k, which is equal for one step.
    * AFL's result: The paper averages w over rounds; fedvlp deploys the last w.
    * AFL's cohorts: In fedvlp an absent client keeps its weight, and the cohort's weights keep their sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedvlp.core.aggregation.base import cast_like
from fedvlp.core.state import ClientUpdate, State
from fedvlp.training.add_ons.base import AddOn, LocalContext, LocalResult, ServerRound, squared_distance
from fedvlp.utils.ranges import NonNegativeFloat, PositiveFloat

SMALLEST = 1e-9  # replaces a loss, learning rate or weight of 0, to avoid divisions by 0


class WeightedByLoss(AddOn):
    """An add-on that weights clients by F_k(w). A client also uploads F_k(w) and its learning rate."""

    sets_weights = True

    def begin(self, local: LocalContext) -> None:
        """Measure the downloaded tensors."""
        rate = local.optimizer.param_groups[0]["lr"] if local.optimizer else 0.0
        local.scratch["measured"] = torch.tensor([local.loss(), rate])

    def finish(self, local: LocalContext, upload: State) -> LocalResult:
        """Upload F_k(w) and the learning rate."""
        return LocalResult(upload, local.scratch)

    def upload_template(self, averaged: State) -> State:
        """Make two numbers, F_k(w) and the learning rate."""
        return {"measured": torch.zeros(2)}


@dataclass(frozen=True)
class QFedAvg(WeightedByLoss):
    """q-FedAvg: client weights proportional to a power of the losses, and a step size that follows from them.

    Args:
        q: Fairness, at least 0; 0 is FedAvg, and the paper uses 0.001 to 5.
        lipschitz: L, > 0; None for 1 / the learning rate, as in the paper, which uses plain SGD.
    """

    q: NonNegativeFloat = 1.0
    lipschitz: PositiveFloat | None = None

    def before_aggregation(self, server: ServerRound) -> tuple[Sequence[ClientUpdate], State]:
        """Weight the updates by p_k F_k^q, and shorten all of them by the factor sum_k p_k L F_k^q / sum_k p_k h_k."""
        losses, rates = torch.stack([sent["measured"] for sent in server.sent]).double().clamp(min=SMALLEST).mT
        start = {name: server.shared[name].double() for name in server.names}
        lengths = torch.stack([squared_distance(update.state, start) for update in server.updates])
        shares = torch.tensor([server.weights[update.client.id] for update in server.updates], dtype=torch.float64)
        # Divided by the largest loss, which cancels, because powers of it could overflow.
        weights = shares * (losses / losses.max()) ** self.q
        growth = self.q * (self.lipschitz or 1 / rates) * lengths / losses
        factor = weights.sum() / (weights * (1 + growth)).sum()
        fair: list[ClientUpdate] = []
        for update, weight in zip(server.updates, weights.tolist(), strict=True):
            # lerp is exact for a factor of 1, so q = 0 is FedAvg bit for bit.
            moved = {name: value.lerp(update.state[name].double(), factor) for name, value in start.items()}
            fair.append(replace(update, state=update.state | cast_like(moved, update.state), weight=weight))
        return fair, {}


@dataclass(frozen=True)
class AFL(WeightedByLoss):
    """Agnostic federated learning: client weights that grow with the losses, until the largest losses are equal.

    Args:
        step: gamma, at least 0: change of a weight per round and difference in loss.
    """

    step: NonNegativeFloat = 0.1

    def before_aggregation(self, server: ServerRound) -> tuple[Sequence[ClientUpdate], State]:
        """Weight the updates by lambda, and store the next lambda."""
        shares = torch.tensor([server.weights[client.id] for client in server.clients], dtype=torch.float64)
        mixture = server.memory.get("mixture", shares / shares.sum()).clone()
        positions = {client.id: position for position, client in enumerate(server.clients)}
        cohort = [positions[update.client.id] for update in server.updates]
        weights = mixture[cohort].clamp(min=SMALLEST).tolist()
        raised = mixture[cohort] + self.step * torch.stack([sent["measured"][0] for sent in server.sent])
        # The Euclidean projection subtracts the largest of these thresholds (Duchi et al., ICML 2008).
        sums = raised.sort(descending=True).values.cumsum(0) - mixture[cohort].sum()
        mixture[cohort] = (raised - (sums / torch.arange(1, len(cohort) + 1)).max()).clamp(min=0)
        updates = [replace(update, weight=weight) for update, weight in zip(server.updates, weights, strict=True)]
        return updates, {"mixture": mixture}
