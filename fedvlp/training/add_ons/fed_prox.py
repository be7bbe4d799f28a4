"""FedProx: a proximal term that keeps each client's tensors near the tensors that it downloaded.

Paper: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Eq. 2 and Algorithm 2:
    h_k(w; w_t) = F_k(w) + mu / 2 |w - w_t|^2    :meth:`FedProx.loss`

Symbols: w_t -> ``start``, mu -> ``weight``.

Communication: no extra tensors.

Deviations:
    * Personal tensors: fedvlp excludes them from the proximal term, because the server has no w_t for them.
"""

from dataclasses import dataclass

from torch import Tensor

from fedvlp.core.protocols import Inputs
from fedvlp.core.state import matches_prefix
from fedvlp.training.add_ons.base import AddOn, LocalContext, squared_distance
from fedvlp.utils.ranges import PositiveFloat


@dataclass(frozen=True)
class FedProx(AddOn):
    """Proximal term that keeps clients near the downloaded tensors.

    Args:
        weight: mu, > 0; the paper tries 0.001, 0.01, 0.1 and 1.

    >>> from fedvlp import LocalTraining
    >>> LocalTraining(epochs=2, add_ons=FedProx(weight=0.1)).listed_add_ons
    (FedProx(weight=0.1),)
    """

    weight: PositiveFloat = 0.01

    needs_average = False

    @property
    def proximal_weight(self) -> float:
        """The weight mu."""
        return self.weight

    def loss(self, local: LocalContext, inputs: Inputs) -> Tensor | None:
        """Compute the proximal term mu / 2 |w - w_t|^2; None if only personal tensors are trained."""
        personal = (*local.module.personal, *local.module.train_only_personal)
        start = {name: value for name, value in local.start.items() if not matches_prefix(personal, name)}
        return self.weight / 2 * squared_distance(local.trained, start) if start else None
