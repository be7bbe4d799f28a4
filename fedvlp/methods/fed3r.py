"""Fed3R: ridge regression from all clients' CLIP features to their classes, in one round.

Paper: Fani et al., "Accelerating Heterogeneous Federated Learning with Closed-form Classifiers", ICML 2024.

Symbols: x image feature, of length 1; e_y one-hot label; lambda -> ``ridge``; alpha -> ``text_weight``.
    A = sum_i x_i x_i^T, b = sum_i x_i e_{y_i}^T             sums over all clients
    W = (A + lambda I)^-1 b                                  :func:`ridge_solution`
    w_c = W_c / |W_c| + alpha t_c, p = softmax(s <w_c, x>)   :meth:`Fed3R.classifier`

Deviations:
    * Features: The paper uses a network pretrained on images, with random features as an option; fedvlp uses CLIP's
      unit features, and adds zero-shot CLIP's classifier with weight alpha (see :mod:`.closed_form`).
    * Next stage: The paper fine-tunes from the solution; fedvlp stops after it.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.state import State
from fedvlp.methods.closed_form import ClosedForm
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveFloat, PositiveInt


class Fed3R(ClosedForm):
    """Ridge regression on one-hot labels, mixed with zero-shot CLIP.

    Args:
        num_clients: Number of clients K.
        ridge: Weight lambda of the solution's squared norm, above 0; FedCOF's released code uses 0.01.
        text_weight: Weight alpha of zero-shot CLIP's classifier, at least 0.
    """

    needs_gram = True

    def __init__(
        self,
        class_names: Names,
        num_clients: PositiveInt,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        ridge: PositiveFloat = 1.0,
        text_weight: NonNegativeFloat = 0.25,
    ) -> None:
        super().__init__(class_names, clip, text_weight=text_weight)
        self.num_clients = num_clients
        self.ridge = ridge

    def classifier(self, moments: State) -> State:
        """Compute the unit ridge solutions plus the weighted text features."""
        images = self.num_clients / moments["clients"]
        solution = ridge_solution(moments["gram"], moments["class_sums"], self.ridge / images)
        texts = self.text_features.double().cpu()
        rows = torch.where(moments["shares"][:, None] > 0, F.normalize(solution, dim=-1), texts)
        return {"weight": rows + self.text_weight * texts}


def ridge_solution(
    gram: Float[Tensor, "d d"], class_sums: Float[Tensor, "C d"], ridge: float | Tensor
) -> Float[Tensor, "C d"]:
    """Solve (A + lambda I) W = b, with one row of the result per class.

    >>> ridge_solution(torch.tensor([[3.0]]), torch.tensor([[2.0], [6.0]]), 1.0).tolist()
    [[0.5], [1.5]]
    """
    solution: Tensor = torch.linalg.solve(gram + ridge * torch.eye(len(gram), dtype=gram.dtype), class_sums.T)
    return solution.T
