"""CentredMeans: class means of features from which each client's mean feature was subtracted, adapted at test time.

Paper: Li et al., "Adaptive Batch Normalization for Practical Domain Adaptation", Pattern Recognition 2018, for
statistics of each domain at test time. The classifier is FedNCM's (Legate et al., NeurIPS 2023).

Symbols: x_i image feature and t_c text feature, unit vectors; mu_k mean feature of client k's images, n_kc of them in
class c; mu mean feature of a test domain's unlabelled images; alpha -> ``text_weight``; s logit scale.
    m_c proportional to sum_k sum_{i: y_i = c} (x_i - mu_k)         :meth:`CentredMeans.upload_state`
    w_c = (m_c / |m_c| + alpha t_c) / |m_c / |m_c| + alpha t_c|     :meth:`.FedNCM.classifier`
    p(c | x) = softmax_c(s <w_c, x - mu>)                           :meth:`CentredMeans.forward`

Deviations:
    * Statistics: Adaptive batch normalization replaces means and deviations of hidden layers; CentredMeans subtracts
      only the mean of CLIP's features.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.protocols import Inputs
from fedvlp.core.state import State
from fedvlp.methods.fed_ncm import FedNCM
from fedvlp.utils.ranges import Names, NonNegativeFloat


class CentredMeans(FedNCM):
    """Class means of centred features, mixed with text features; each domain's test images are centred by their mean.

    Before the first round, it is zero-shot CLIP on centred features.
    """

    needs_test_images = True
    centre: Tensor

    def __init__(
        self, class_names: Names, clip: CLIPSpec | CLIP | str = "ViT-B-16", *, text_weight: NonNegativeFloat = 0.5
    ) -> None:
        super().__init__(class_names, clip, text_weight=text_weight)
        self.register_buffer("centre", torch.zeros(self.weight.shape[1]), persistent=False)  # mu, [d]

    def upload_state(self) -> State:
        """Subtract n_kc mu_k from the sums per class, and divide by the client's number of images."""
        state = super().upload_state()
        mean = state["moments.class_sums"].sum(0)
        return state | {"moments.class_sums": state["moments.class_sums"] - state["moments.shares"][:, None] * mean}

    def see_test_images(self, batches: Iterable[Inputs]) -> None:
        """Compute the mean feature mu of a domain's images."""
        features = [F.normalize(self.precomputed(inputs)["features"].float(), dim=-1) for inputs in batches]
        self.centre.copy_(torch.cat(features).mean(0))

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits s <w_c, x - mu>."""
        features = F.normalize(self.precomputed(inputs)["features"].float(), dim=-1)
        with torch.autocast(features.device.type, enabled=False):
            return self.clip.logit_scale * (features - self.centre) @ self.weight.T
