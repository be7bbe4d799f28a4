"""The proximal term of FedProx, which holds a client's tensors to what it went on from, whatever the method.

Paper: Li et al., Federated optimization in heterogeneous networks, MLSys 2020, Eq. 2 and Algorithm 2:
    h_k(w; w_t) = F_k(w) + mu / 2 |w - w_t|^2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import State, matches_prefix


@dataclass(frozen=True)
class ProximalTerm:
    """What is added to the loss of each local step.

    Attributes:
        weight: mu, above 0.
        start: w_t by name, copies; of several clients in one call [K, ...].
    """

    weight: float
    start: State

    @classmethod
    def around(cls, weight: float, module: FederatedModule, trained: Mapping[str, Tensor]) -> ProximalTerm | None:
        """Returns the term around the present values; None if it has no weight or nothing that is shared is trained.

        Tensors that stay on a client are left out: there is no w_t of the server's to which they could be held.

        Args:
            weight: mu, at least 0.
            module: which says what stays on a client.
            trained: the tensors that get gradients, by name.
        """
        if not weight:
            return None
        own = (*module.personal, *module.train_only_personal)
        start = {name: value.detach().clone() for name, value in trained.items() if not matches_prefix(own, name)}
        return cls(weight, start) if start else None

    def __call__(self, trained: Mapping[str, Tensor]) -> Tensor:
        """Returns mu / 2 |w - w_t|^2 of these tensors; of several clients the sum of theirs."""
        moved = [(trained[name] - start).square().sum() for name, start in self.start.items()]
        return self.weight / 2 * torch.stack(moved).sum()
