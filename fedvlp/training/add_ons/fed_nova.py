"""FedNova: each client's update is divided by how far its optimizer goes in its steps: more steps count no more.

Paper: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS
2020.

Symbols: x -> ``shared``, p_k -> share of ``weights``, tau_k -> ``steps``, |a_k|_1 -> ``length``, tau_k for plain SGD.
    d_k = (x - x_k) / (eta |a_k|_1)                                 normalized gradient, Eq. 4
    tau_eff = sum_k p_k |a_k|_1                                     effective steps, Section 4
    x <- x - tau_eff eta sum_k p_k d_k                              Eq. 6; :meth:`FedNova.before_aggregation`

What is sent: a client uploads one number more, |a_k|_1.

Departures:
    * Length: the paper derives |a_k|_1 for SGD with momentum and with FedProx's term (Section 4.1); fedvlp measures it,
      because methods use other optimizers. It is the distance, in learning rates, that the method's optimizer covers in
      tau_k steps along a gradient of 1, with the proximal terms of FedProx and FedDyn. For Adam, whose steps are about
      one learning rate each, this is tau_k. Weight decay is ignored, and so is the factor of a learning-rate schedule,
      which would matter only with a proximal term.
    * Effective steps: with FedProx, the released code takes tau_eff as the mean of tau_k; fedvlp always takes the mean
      of |a_k|_1, as Section 4 of the paper does.
    * Optimizer state: fedvlp measures with a fresh optimizer even if clients keep theirs between rounds.
    * Aggregation: the paper averages; fedvlp moves each upload to where tau_eff steps would have brought it and then
      combines the uploads as the method or ``trainer.server.aggregation`` says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import ClientUpdate, State
from fedvlp.training.add_ons.base import AddOn, Finished, LocalContext, ServerRound


@dataclass(frozen=True)
class FedNova(AddOn):
    """Average the clients' updates per step, so that a client that takes more steps does not count for more."""

    def finish(self, local: LocalContext, upload: State) -> Finished:
        """Send |a_k|_1."""
        length = distance_of_steps(local.module, local.steps, local.proximal_weight)
        return Finished(upload, {"length": torch.tensor([length])})

    def sent_like(self, averaged: State) -> State:
        """One number."""
        return {"length": torch.zeros(1)}

    def before_aggregation(self, server: ServerRound) -> tuple[Sequence[ClientUpdate], State]:
        """Updates as after tau_eff steps each; nothing is remembered."""
        # A step is the shortest distance: a client that claims less would count for more than any can.
        lengths = [max(1.0, sent["length"].item()) for sent in server.sent]
        # Equal lengths change nothing but the last bits.
        if len(set(lengths)) == 1:
            return server.updates, {}
        weights = [server.weights[update.client.id] for update in server.updates]
        effective = sum(w * length for w, length in zip(weights, lengths, strict=True)) / sum(weights)
        rescaled: list[ClientUpdate] = []
        for update, length in zip(server.updates, lengths, strict=True):
            state = dict(update.state)
            for name in server.names:
                before = server.shared[name].float()
                move = state[name].float() - before
                state[name] = (before + effective / length * move).to(state[name].dtype)
            rescaled.append(replace(update, state=state))
        return rescaled, {}


def distance_of_steps(module: FederatedModule, steps: int, proximal_weight: float = 0.0) -> float:
    """Measure how far, in learning rates, the method's optimizer moves in ``steps`` steps along a gradient of 1.

    A proximal term mu / 2 |w - w_t|^2 with ``proximal_weight`` mu shortens the steps.
    """
    if module.make_optimizer is None:
        return float(steps)
    # In float64, since thousands of small steps are summed.
    place = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = module.make_optimizer([place])
    rate = float(optimizer.param_groups[0]["lr"])
    for group in optimizer.param_groups:
        # Decay draws to zero, where this parameter starts, and would shorten what is measured.
        group["weight_decay"] = 0.0
    # Without a learning rate nothing moves, and each step counts the same.
    if not rate:
        return float(steps)
    for _ in range(steps):
        place.grad = 1 + proximal_weight * place.detach()
        optimizer.step()
    return -place.item() / rate
