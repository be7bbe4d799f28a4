"""SCAFFOLD: control variates correct the difference between each client's gradients and the average gradient.

Paper: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, Algorithm 1.

Symbols: x -> ``shared``, y_i -> ``trained``, c -> ``received`` and the server's memory, c_i -> the client's memory,
K -> ``steps``.
    y_i <- y_i - eta_l (g_i(y_i) - c_i + c)                 Line 10; :meth:`Scaffold.loss`
    c_i+ <- c_i - c + (x - y_i) / (K eta_l), option II      Line 12; :meth:`Scaffold.finish`
    c <- c + |S| / N mean_{i in S} (c_i+ - c_i)             Line 17; :meth:`Scaffold.before_aggregation`

Communication: a client also downloads c and uploads c_i+ - c_i, which doubles the traffic.

Deviations:
    * Option II: The paper computes c_i+ from the distance x - y_i; fedvlp uses the mean of g_i(y_i) over the K steps.
      This also holds with momentum, Adam or weight decay, where the distance is not a sum of gradients. For plain SGD
      both are equal, since (x - y_i) / eta_l is the sum of g_i(y_i) - c_i + c.
    * Optimizer: The paper uses SGD; fedvlp passes the corrected gradient to the method's optimizer.
    * Weights: The paper counts each client once; fedvlp weights c like the method weights clients, c + sum_{i in S} p_i
      (c_i+ - c_i). The corrections then cancel in the mean of the clients' tensors.
    * Server: The paper moves x by eta_g times the mean update; fedvlp uses the method's aggregation (eta_g is 1) or
      ``trainer.server.aggregation``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvlp.core.protocols import Inputs
from fedvlp.core.state import ClientUpdate, State
from fedvlp.training.add_ons.base import AddOn, LocalContext, LocalResult, ServerRound


@dataclass(frozen=True)
class Scaffold(AddOn):
    """Correction of each local step by the difference between the average gradient and the client's own.

    >>> from fedvlp import FedProx, LocalTraining
    >>> LocalTraining(steps=10, add_ons=[Scaffold(), FedProx(weight=0.1)]).listed_add_ons
    (Scaffold(), FedProx(weight=0.1))
    """

    needs_gradients = True

    def download(self, memory: State, shared: State) -> State:
        """Get the server's control variate c, initially zero."""
        return {name: memory[name] if name in memory else torch.zeros_like(value) for name, value in shared.items()}

    def begin(self, local: LocalContext) -> None:
        """Initialize the sum of the corrected gradients."""
        for name, value in local.averaged.items():
            local.scratch[name] = torch.zeros_like(value)

    def loss(self, local: LocalContext, inputs: Inputs) -> Tensor:
        """Compute <c - c_i, y>. Its gradient is the correction."""
        # As a loss, so that the correction is scaled and cast like every gradient.
        return torch.stack([(local.trained[name] * value).sum() for name, value in _correction(local).items()]).sum()

    def after_backward(self, local: LocalContext) -> None:
        """Add up the gradients that the optimizer uses."""
        for name in local.names:
            gradient = local.trained[name].grad
            # A batch may not use a tensor, such as another domain's prompt.
            if gradient is not None:
                local.scratch[name] += gradient

    def finish(self, local: LocalContext, upload: State) -> LocalResult:
        """Upload c_i+ - c_i, and store c_i+ on the client."""
        own = _own_variate(local)
        correction = _correction(local)
        control: State = {}
        for name, total in local.scratch.items():
            # Subtracting the correction from the corrected gradients gives the client's own gradients.
            control[name] = total / max(1, local.steps) - correction[name]
        return LocalResult(upload, {name: value - own[name] for name, value in control.items()}, control)

    def upload_template(self, averaged: State) -> State:
        """Copy the averaged tensors' names and shapes."""
        return dict(averaged)

    def before_aggregation(self, server: ServerRound) -> tuple[Sequence[ClientUpdate], State]:
        """Compute and store the new c; the updates are unchanged."""
        total = sum(server.weights.values())
        control = self.download(server.memory, {name: server.shared[name] for name in server.names})
        # Cloned, because other objects may hold the old memory.
        control = {name: value.clone() for name, value in control.items()}
        for update, sent in zip(server.updates, server.sent, strict=True):
            share = server.weights[update.client.id] / total
            for name, value in control.items():
                value.add_(sent[name], alpha=share)
        return server.updates, control


def _own_variate(local: LocalContext) -> State:
    return local.memory or {name: torch.zeros_like(value) for name, value in local.averaged.items()}


def _correction(local: LocalContext) -> State:
    own = _own_variate(local)
    return {name: local.received[name] - own[name] for name in local.names}
