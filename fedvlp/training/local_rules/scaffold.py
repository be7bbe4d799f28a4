"""SCAFFOLD: control variates take out of each client's steps what sets its gradients apart from those of all.

Paper: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, Algorithm 1.

Symbols: x -> ``shared``, y_i -> ``trained``, c -> ``received`` and in the server's memory, c_i -> ``kept``, K -> the
number of steps.
    y_i <- y_i - eta_l (g_i(y_i) - c_i + c)                 Line 10; :meth:`Scaffold.term`
    c_i+ <- c_i - c + (x - y_i) / (K eta_l), option II      Line 12; :meth:`Scaffold.finish`
    c <- c + |S| / N mean_{i in S} (c_i+ - c_i)             Line 17; :meth:`Scaffold.before_combining`

What is sent: a client downloads c beside x and uploads c_i+ - c_i beside its tensors, twice as much as without.

Departures:
    * Option II is computed as the mean over the K steps of g_i(y_i), which is the same for plain SGD: (x - y_i) / eta_l
      is the sum of g_i(y_i) - c_i + c. It does not depend on the optimizer, so it stays right with momentum, Adam or
      weight decay, where the way that is gone is no sum of gradients. These take the corrected gradient as theirs.
    * Where the method weighs clients by their images, so does the server's c: c + sum_{i in S} p_i (c_i+ - c_i). The
      corrections of all clients then cancel in the same mean that their tensors go into, as they do in the paper,
      which counts each client once.
    * x is moved by the method's own server (eta_g is 1), or by another ``trainer.server.aggregation``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedvlp.core.state import ClientUpdate, State
from fedvlp.training.local_rules.base import ClientEnd, LocalRule, ServerRound, Visit
from fedvlp.training.local_rules.terms import LocalTerm


@dataclass(frozen=True)
class Scaffold(LocalRule):
    """Corrects each local step by the difference of all clients' mean gradient to the client's own."""

    needs_gradients = True

    def download(self, memory: State, shared: State) -> State:
        """Returns c, zero at first."""
        return {name: memory[name] if name in memory else torch.zeros_like(value) for name, value in shared.items()}

    def term(self, visit: Visit) -> LocalTerm:
        """Returns <c - c_i, y>, whose gradient is the correction."""
        return LocalTerm(_correction(visit))

    def finish(self, visit: Visit, end: ClientEnd) -> tuple[State, State]:
        """Returns c_i+ - c_i, and c_i+."""
        correction = _correction(visit)
        control = {name: end.gradients[name] - correction[name] for name in visit.names}
        return {name: value - _own(visit)[name] for name, value in control.items()}, control

    def upload_like(self, averaged: State) -> State:
        """Returns tensors as those that are averaged."""
        return dict(averaged)

    def before_combining(self, round: ServerRound) -> tuple[Sequence[ClientUpdate], State]:
        """Returns the updates as they are, and the new c."""
        total = sum(round.weights.values())
        control = self.download(round.memory, {name: round.shared[name] for name in round.names})
        control = {name: value.clone() for name, value in control.items()}
        for update, sent in zip(round.updates, round.sent, strict=True):
            share = round.weights[update.client.id] / total
            for name, value in control.items():
                value.add_(sent[name], alpha=share)
        return round.updates, control


def _own(visit: Visit) -> State:
    """Returns c_i, zero at first."""
    return visit.kept or {name: torch.zeros_like(value) for name, value in visit.averaged.items()}


def _correction(visit: Visit) -> State:
    """Returns c - c_i."""
    own = _own(visit)
    return {name: visit.received[name] - own[name] for name in visit.names}
