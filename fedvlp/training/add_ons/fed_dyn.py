"""FedDyn: a regularizer that changes every round, so that the clients' optima converge to the global optimum.

Paper: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, Algorithm 1.

Symbols: theta^{t-1} -> ``start``, theta_k^t -> ``trained``, grad L_k(theta_k^{t-1}) -> the client's memory, alpha ->
``alpha``, -h / alpha -> the server's memory.
    L_k(theta) - <grad L_k(theta_k^{t-1}), theta> + alpha / 2 |theta - theta^{t-1}|^2   :meth:`FedDyn.loss`
    grad L_k(theta_k^t) = grad L_k(theta_k^{t-1}) - alpha (theta_k^t - theta^{t-1})     :meth:`FedDyn.finish`
    h^t = h^{t-1} - alpha / m sum_{k in P} (theta_k^t - theta^{t-1})                    :meth:`FedDyn.after_aggregation`
    theta^t = mean_{k in P} theta_k^t - h^t / alpha                                     :meth:`FedDyn.after_aggregation`

Communication: no extra tensors. A client stores as many values as it uploads.

Deviations:
    * Weights: The paper counts each client once; the released code has an alpha per client; fedvlp uses weights p_k.
      The server's step starts from the method's mean or ``trainer.server.aggregation``, and h is scaled by the cohort's
      share of all weights. Training then converges where sum_k p_k grad L_k is zero, like FedAvg.
    * Local training: The paper minimizes each client's objective; fedvlp takes steps or epochs, as in its experiments.
    * Averages over rounds: The paper has none; fedvlp averages the tensors before the server's step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedvlp.core.protocols import Inputs
from fedvlp.core.state import State
from fedvlp.training.add_ons.base import AddOn, LocalContext, LocalResult, ServerRound, squared_distance
from fedvlp.utils.ranges import PositiveFloat


@dataclass(frozen=True)
class FedDyn(AddOn):
    """Dynamic regularizer: pulls clients towards the downloaded tensors, corrected for the pull of earlier rounds.

    Args:
        alpha: Weight of the regularizer, > 0; the paper uses 0.1, 0.01 or 0.001.
    """

    alpha: PositiveFloat = 0.01

    @property
    def proximal_weight(self) -> float:
        """The weight alpha."""
        return self.alpha

    def loss(self, local: LocalContext, inputs: Inputs) -> Tensor:
        """Compute the regularizer alpha / 2 |theta - theta^{t-1}|^2 - <grad L_k(theta_k^{t-1}), theta>."""
        # One sum, because a separate backward pass per term would double the cost.
        proximal = self.alpha / 2 * squared_distance(local.trained, local.averaged)
        linear = [(local.trained[name] * -value).sum() for name, value in local.memory.items()]
        return torch.stack([*linear, proximal]).sum()

    def finish(self, local: LocalContext, upload: State) -> LocalResult:
        """Store the new gradient on the client."""
        memory: State = {}
        for name, start in local.averaged.items():
            move = local.trained[name].detach() - start
            memory[name] = local.memory[name] - self.alpha * move if local.memory else -self.alpha * move
        return LocalResult(upload, memory=memory)

    def after_aggregation(self, server: ServerRound, combined: State) -> tuple[State, State]:
        """Compute theta^t, and store the drift -h^t / alpha."""
        share = sum(server.weights[update.client.id] for update in server.updates) / sum(server.weights.values())
        after: State = {}
        drifts: State = {}
        for name, value in combined.items():
            drift = share * (value.float() - server.shared[name].float())
            drifts[name] = server.memory[name] + drift if name in server.memory else drift
            after[name] = (value.float() + drifts[name]).to(value.dtype)
        return after, drifts
