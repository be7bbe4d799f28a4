"""FedNova: normalizes each client's update by its number of steps, so that more steps do not count more.

Paper: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS
2020.

Symbols: x -> ``shared``, p_k -> share of ``weights``, tau_k -> ``steps``, |a_k|_1 -> ``length``, tau_k for plain SGD.
    d_k = (x - x_k) / (eta |a_k|_1)                                 normalized gradient, Eq. 4
    tau_eff = sum_k p_k |a_k|_1                                     effective steps, Section 4
    x <- x - tau_eff eta sum_k p_k d_k                              Eq. 6; :meth:`FedNova.before_aggregation`

Communication: a client also uploads one number, |a_k|_1.

Deviations:
    * Length: The paper derives |a_k|_1 for SGD with momentum and with FedProx's term (Section 4.1); fedvlp measures it,
      because methods use various optimizers. It is the distance, in learning rates, that the method's optimizer covers
      in tau_k steps along a gradient of 1, including proximal terms of FedProx and FedDyn. For Adam, whose steps
      are about one learning rate long, it is tau_k. The measurement ignores weight decay. It also ignores the factor of
      a learning-rate schedule, which would matter only with a proximal term.
    * Effective steps: The released code computes tau_eff with FedProx as the mean of tau_k; fedvlp always computes it
      as the mean of |a_k|_1, as Section 4 of the paper defines it.
    * Optimizer state: The measurement uses a new optimizer even if clients keep their optimizer's state between rounds.
    * Aggregation: The paper averages; fedvlp rescales each upload to tau_eff steps, so that FedNova works with any
      aggregator. It then combines the uploads with the method's strategy or ``trainer.server.aggregation``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import ClientUpdate, State
from fedvlp.training.add_ons.base import AddOn, LocalContext, LocalResult, ServerRound


@dataclass(frozen=True)
class FedNova(AddOn):
    """Normalized averaging of updates per step, so that a client that takes more steps does not count more."""

    def finish(self, local: LocalContext, upload: State) -> LocalResult:
        """Add |a_k|_1 to the upload."""
        length = distance_of_steps(local.module, local.steps, local.proximal_weight)
        return LocalResult(upload, {"length": torch.tensor([length])})

    def upload_template(self, averaged: State) -> State:
        """Make one number, |a_k|_1."""
        return {"length": torch.zeros(1)}

    def before_aggregation(self, server: ServerRound) -> tuple[Sequence[ClientUpdate], State]:
        """Rescale each update to tau_eff steps."""
        # The shortest possible distance is one step. A smaller number would give a client too much weight.
        lengths = [max(1.0, sent["length"].item()) for sent in server.sent]
        # Equal lengths would change only the last bits.
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
    """Measure the distance, in learning rates, of ``steps`` steps of the method's optimizer along a gradient of 1.

    A proximal term mu / 2 |w - w_t|^2 with ``proximal_weight`` mu shortens the steps.
    """
    if module.make_optimizer is None:
        return float(steps)
    # In float64, because thousands of small steps are summed.
    position = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = module.make_optimizer([position])
    rate = float(optimizer.param_groups[0]["lr"])
    for group in optimizer.param_groups:
        # Weight decay pulls the parameter back to its start at zero, which would shorten the distance.
        group["weight_decay"] = 0.0
    # With a learning rate of 0 nothing moves, so every step counts the same.
    if not rate:
        return float(steps)
    for _ in range(steps):
        position.grad = 1 + proximal_weight * position.detach()
        optimizer.step()
    return -position.item() / rate
