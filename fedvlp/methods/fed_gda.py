"""FedGDA: Gaussian classes with a shared covariance, from moments of CLIP features, mixed with zero-shot CLIP.

Papers: Wang et al., "A Hard-to-Beat Baseline for Training-free CLIP-based Adaptation", ICLR 2024. From federated sums:
Guan et al., "Capture Global Feature Statistics for One-Shot Federated Learning" (FedCGS), AAAI 2025, and GH-OFL, ICLR
2026.

Symbols: x image feature and t_c text feature, unit vectors in d dimensions; m_c mean of class c, with share p_c of the
N images; alpha -> ``text_weight``; s logit scale.
    S = 1 / N sum_i x_i x_i^T - sum_c p_c m_c m_c^T             :meth:`FedGDA.classifier`
    Sigma = (1 - r) S + r tr(S) / d I, r = d / (N - 1 + d)      Wang et al.'s estimator up to a factor
    p(c | x) = softmax_c(<Sigma^-1 m_c, x> - 1/2 <m_c, Sigma^-1 m_c> + alpha s <t_c, x>)
                                                                :meth:`FedGDA.classifier`

Deviations:
    * Scale: Wang et al. divide the discriminants by (N - 1 + d) / (N - 1) N / d. They weight them by a number chosen on
      each data set's validation images. fedvlp does not scale them, and uses a fixed weight of the text
      part, chosen on source validation.
    * Prior: Like Wang et al., fedvlp takes all classes as equally likely.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.protocols import Inputs
from fedvlp.core.state import State
from fedvlp.methods.closed_form import ClosedForm
from fedvlp.utils.ranges import ClosedFraction, Names, NonNegativeFloat, PositiveInt


class FedGDA(ClosedForm):
    """Gaussian discriminant analysis with a shared covariance, mixed with zero-shot CLIP.

    Args:
        num_clients: Number of clients K.
        shrinkage: Share r of the identity in the covariance, in [0, 1]; d / (N - 1 + d) if null.
        text_weight: Weight alpha of zero-shot CLIP's logits, at least 0.
    """

    needs_gram = True
    deployed = ("weight", "bias")
    bias: Tensor

    def __init__(
        self,
        class_names: Names,
        num_clients: PositiveInt,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        shrinkage: ClosedFraction | None = None,
        text_weight: NonNegativeFloat = 0.5,
    ) -> None:
        super().__init__(class_names, clip, text_weight=text_weight)
        self.register_buffer("bias", torch.zeros(len(class_names)))  # [C]
        self.num_clients = num_clients
        self.shrinkage = shrinkage

    def classifier(self, moments: State) -> State:
        """Compute the linear discriminants plus the weighted text features."""
        means = self.class_means(moments)
        width = means.shape[1]
        images = self.num_clients / moments["clients"]
        share = width / (images - 1 + width) if self.shrinkage is None else self.shrinkage
        # A class without images has a share of 0, so its mean does not matter.
        within = moments["gram"] - (moments["shares"][:, None] * means).T @ means  # S, [d, d]
        shrunk = (1 - share) * within + share * within.trace() / width * torch.eye(width, dtype=within.dtype)
        # Without variance within classes, only the text counts.
        discriminants = means @ torch.linalg.pinv(shrunk, hermitian=True)
        bias = -(discriminants * means).sum(1) / 2
        weight = discriminants / self.clip.logit_scale + self.text_weight * self.text_features.double().cpu()
        return {"weight": weight, "bias": bias}

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits s <w_c, x> + b_c."""
        return super().forward(inputs) + self.bias
