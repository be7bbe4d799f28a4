"""FedDyn: a regularizer that changes from round to round, so that clients' optima come to agree with that of all.

Paper: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, Algorithm 1.

Symbols: theta^{t-1} -> ``start``, theta_k^t -> ``trained``, grad L_k(theta_k^{t-1}) -> ``kept``, alpha -> ``alpha``,
-h / alpha -> the server's memory.
    L_k(theta) - <grad L_k(theta_k^{t-1}), theta> + alpha / 2 |theta - theta^{t-1}|^2   :meth:`FedDyn.loss`
    grad L_k(theta_k^t) = grad L_k(theta_k^{t-1}) - alpha (theta_k^t - theta^{t-1})     :meth:`FedDyn.finish`
    h^t = h^{t-1} - alpha / m sum_{k in P} (theta_k^t - theta^{t-1})                    :meth:`FedDyn.after_aggregation`
    theta^t = mean_{k in P} theta_k^t - h^t / alpha                                     :meth:`FedDyn.after_aggregation`

What is sent: nothing more than without. A client keeps as many values as it sends.

Departures:
    * Weights: the paper counts each client once, and its released code has an alpha for each client; in fedvlp the
      server's step starts from the method's own mean or ``trainer.server.aggregation``, and h takes the cohort's share
      of all weights p_k. It thus ends where sum_k p_k grad L_k is zero, as FedAvg should.
    * Local training: the paper minimizes each client's objective; fedvlp takes steps or epochs, as its experiments do.
    * Averages over rounds: the paper has none; if a method deploys one, it is of tensors before the server's step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedvlp.core.protocols import Inputs
from fedvlp.core.state import State
from fedvlp.training.add_ons.base import AddOn, Finished, LocalContext, ServerRound, squared_distance
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
        """Send nothing more, and keep the new gradient."""
        kept: State = {}
        for name, start in local.averaged.items():
            move = local.trained[name].detach() - start
            kept[name] = local.kept[name] - self.alpha * move if local.kept else -self.alpha * move
        return Finished(upload, kept=kept)

    def after_aggregation(self, server: ServerRound, combined: State) -> tuple[State, State]:
        """Return theta^t, and remember -h^t / alpha as the drift."""
        share = sum(server.weights[update.client.id] for update in server.updates) / sum(server.weights.values())
        after: State = {}
        drifts: State = {}
        for name, value in combined.items():
            drift = share * (value.float() - server.shared[name].float())
            drifts[name] = server.memory[name] + drift if name in server.memory else drift
            after[name] = (value.float() + drifts[name]).to(value.dtype)
        return after, drifts
