"""FedProx: a proximal term holds each client's tensors to what it downloaded, whatever the method.

Paper: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Eq. 2 and Algorithm 2:
    h_k(w; w_t) = F_k(w) + mu / 2 |w - w_t|^2    :meth:`FedProx.loss`

Symbols: w_t -> ``start``, mu -> ``weight``.

What is sent: nothing more than without.

Departure: tensors that stay on a client are left out, since the server has no w_t to which they could be held.
"""

from dataclasses import dataclass

from torch import Tensor

from fedvlp.core.protocols import Inputs
from fedvlp.core.state import matches_prefix
from fedvlp.training.add_ons.base import AddOn, LocalContext, squared_distance
from fedvlp.utils.ranges import PositiveFloat


@dataclass(frozen=True)
class FedProx(AddOn):
    """Holds clients to what they downloaded.

    Args:
        weight: mu, above 0; the paper tries 0.001, 0.01, 0.1 and 1.
    """

    weight: PositiveFloat = 0.01

    needs_average = False

    @property
    def proximal_weight(self) -> float:
        """The weight mu."""
        return self.weight

    def loss(self, local: LocalContext, inputs: Inputs) -> Tensor | None:
        """The proximal term mu / 2 |w - w_t|^2; None where nothing that is shared is trained."""
        personal = (*local.module.personal, *local.module.train_only_personal)
        start = {name: value for name, value in local.start.items() if not matches_prefix(personal, name)}
        return self.weight / 2 * squared_distance(local.trained, start) if start else None
