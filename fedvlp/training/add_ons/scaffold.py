"""SCAFFOLD: control variates take out of each client's steps what sets its gradients apart from those of all.

Paper: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, Algorithm 1.

Symbols: x -> ``shared``, y_i -> ``trained``, c -> ``received`` and in the server's memory, c_i -> ``kept``, K -> the
number of steps.
    y_i <- y_i - eta_l (g_i(y_i) - c_i + c)                 Line 10; :meth:`Scaffold.loss`
    c_i+ <- c_i - c + (x - y_i) / (K eta_l), option II      Line 12; :meth:`Scaffold.finish`
    c <- c + |S| / N mean_{i in S} (c_i+ - c_i)             Line 17; :meth:`Scaffold.before_aggregation`

What is sent: a client downloads c beside x and uploads c_i+ - c_i beside its tensors, twice as much as without.

Departures:
    * Option II: fedvlp computes the mean of g_i(y_i) over the K steps. For plain SGD it is the same, since
      (x - y_i) / eta_l is the sum of g_i(y_i) - c_i + c. It also holds with momentum, Adam or weight decay, where the
      distance moved is no sum of gradients. These optimizers receive the corrected gradient.
    * Weights: the paper counts each client once; fedvlp weighs c as the method weighs clients,
      c + sum_{i in S} p_i (c_i+ - c_i), so that all corrections cancel in the mean of the clients' tensors.
    * Server: the method's own aggregation (eta_g is 1) or ``trainer.server.aggregation`` moves x.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvlp.core.protocols import Inputs
from fedvlp.core.state import ClientUpdate, State
from fedvlp.training.add_ons.base import AddOn, Finished, LocalContext, ServerRound


@dataclass(frozen=True)
class Scaffold(AddOn):
    """Corrects each local step by the difference of all clients' mean gradient to the client's own."""

    needs_gradients = True

    def download(self, memory: State, shared: State) -> State:
        """The server's control variate c, zero at first."""
        return {name: memory[name] if name in memory else torch.zeros_like(value) for name, value in shared.items()}

    def begin(self, local: LocalContext) -> None:
        """Make room for the sum of the corrected gradients."""
        for name, value in local.averaged.items():
            local.scratch[name] = torch.zeros_like(value)

    def loss(self, local: LocalContext, inputs: Inputs) -> Tensor:
        """The term <c - c_i, y>, whose gradient is the correction."""
        # As a loss, so that the correction is scaled and cast as every gradient is.
        return torch.stack([(local.trained[name] * value).sum() for name, value in _correction(local).items()]).sum()

    def after_backward(self, local: LocalContext) -> None:
        """Add the gradients by which the optimizer steps."""
        for name in local.names:
            gradient = local.trained[name].grad
            # A step's batch may leave a tensor out, such as another domain's prompt.
            if gradient is not None:
                local.scratch[name] += gradient

    def finish(self, local: LocalContext, upload: State) -> Finished:
        """Send c_i+ - c_i, and keep c_i+."""
        own = _own_variate(local)
        correction = _correction(local)
        control: State = {}
        for name, total in local.scratch.items():
            # The sums are of corrected gradients; less the correction they are the client's own.
            control[name] = total / max(1, local.steps) - correction[name]
        return Finished(upload, {name: value - own[name] for name, value in control.items()}, control)

    def sent_like(self, averaged: State) -> State:
        """Tensors such as those that are averaged."""
        return dict(averaged)

    def before_aggregation(self, server: ServerRound) -> tuple[Sequence[ClientUpdate], State]:
        """The updates, unchanged, and the new c."""
        total = sum(server.weights.values())
        control = self.download(server.memory, {name: server.shared[name] for name in server.names})
        # The memory is a value that others may hold.
        control = {name: value.clone() for name, value in control.items()}
        for update, sent in zip(server.updates, server.sent, strict=True):
            share = server.weights[update.client.id] / total
            for name, value in control.items():
                value.add_(sent[name], alpha=share)
        return server.updates, control


def _own_variate(local: LocalContext) -> State:
    """The client's control variate c_i, zero at first."""
    return local.kept or {name: torch.zeros_like(value) for name, value in local.averaged.items()}


def _correction(local: LocalContext) -> State:
    own = _own_variate(local)
    return {name: local.received[name] - own[name] for name in local.names}
