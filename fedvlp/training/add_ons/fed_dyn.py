"""FedDyn: a regularizer that changes from round to round, so that clients' optima come to agree with that of all.

Paper: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, Algorithm 1.

Symbols: theta^{t-1} -> ``start``, theta_k^t -> ``trained``, grad L_k(theta_k^{t-1}) -> ``kept``, alpha -> ``alpha``,
-h / alpha -> ``drift``, in the server's memory.
    L_k(theta) - <grad L_k(theta_k^{t-1}), theta> + alpha / 2 |theta - theta^{t-1}|^2    :meth:`FedDyn.loss`
    grad L_k(theta_k^t) = grad L_k(theta_k^{t-1}) - alpha (theta_k^t - theta^{t-1})      :meth:`FedDyn.finish`
    h^t = h^{t-1} - alpha / m sum_{k in P} (theta_k^t - theta^{t-1})                     :meth:`FedDynServer.follow`
    theta^t = mean_{k in P} theta_k^t - h^t / alpha                                      :meth:`FedDynServer.follow`

What is sent: nothing more than without. A client keeps as many numbers as it sends.

Departures:
    * The server's step starts from what the method's own mean, or another ``trainer.server.aggregation``, makes of
      uploads. h takes the share of the weights of all clients that took part, |P| / m where each counts once. With
      weights p_k it thus ends where sum_k p_k grad L_k is zero, as FedAvg should; the paper counts each client once,
      and its released code comes to the weighted objective by an alpha for each client.
    * The paper minimizes each client's objective; here, as in its experiments, a client takes its steps or epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedvlp.core.aggregation.base import Aggregator, WeightedMean
from fedvlp.core.aggregation.server_optimizers import ServerOptimizer
from fedvlp.core.protocols import Inputs
from fedvlp.core.state import State
from fedvlp.training.add_ons.base import AddOn, Finished, LocalContext, squared_distance
from fedvlp.utils.ranges import PositiveFloat


@dataclass(frozen=True)
class FedDyn(AddOn):
    """Holds clients to what they downloaded, and lets go of what they were held from before.

    Args:
        alpha: Weight of the regularizer, above 0; the paper takes 0.1, 0.01 or 0.001.
    """

    alpha: PositiveFloat = 0.01

    @property
    def proximal_weight(self) -> float:
        """The weight alpha."""
        return self.alpha

    def loss(self, local: LocalContext, inputs: Inputs) -> Tensor:
        """The regularizer alpha / 2 |theta - theta^{t-1}|^2 - <grad L_k(theta_k^{t-1}), theta>."""
        # Both terms are in one pass: a pass of its own for each would double the cost.
        proximal = self.alpha / 2 * squared_distance(local.trained, local.averaged)
        linear = [(local.trained[name] * -value).sum() for name, value in local.kept.items()]
        return torch.stack([*linear, proximal]).sum()

    def finish(self, local: LocalContext, upload: State) -> Finished:
        """Sends nothing more, and keeps the new gradient."""
        kept: State = {}
        for name, start in local.averaged.items():
            move = local.trained[name].detach() - start
            kept[name] = local.kept[name] - self.alpha * move if local.kept else -self.alpha * move
        return Finished(upload, kept=kept)

    def aggregator(self, inner: Aggregator, total_weight: float) -> Aggregator:
        """The server's step behind the phase's own aggregator."""
        return FedDynServer(total_weight, inner)


@dataclass(frozen=True)
class FedDynServer(ServerOptimizer):
    """The server's step: what an inner aggregator makes of the uploads, less h / alpha.

    Args:
        total: sum of the weights of all clients.
        inner: the aggregator that combines the uploads.
        share: of that sum, what takes part in the round.
    """

    total: float
    inner: Aggregator = field(default_factory=WeightedMean)
    share: float = 1.0

    def aggregate(
        self, states: Sequence[State], weights: Sequence[float], before: State, memory: State
    ) -> tuple[State, State]:
        """Returns theta^t, and -h^t / alpha as ``drift``."""
        # The share differs from round to round, and aggregators hold no state: a copy has this round's.
        placed = replace(self, share=sum(weights) / self.total)
        return super(FedDynServer, placed).aggregate(states, weights, before, memory)

    def follow(self, step: Tensor, moments: State) -> tuple[Tensor, State]:
        """Returns the mean move less h / alpha, and the drift."""
        # Before the first round h is zero, and so is the drift that is added to.
        drift = self.share * step
        if moments:
            drift = moments["drift"] + drift
        return step + drift, {"drift": drift}
