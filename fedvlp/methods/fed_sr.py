"""FedSR: random features, regularised to be short and close to one Gaussian per class that all clients share.

Paper: Nguyen et al., "FedSR: A Simple and Effective Domain Generalization Method for Federated Learning", NeurIPS 2022.

Symbols: z feature of an image; mu(x) = f(x) and sigma(x) of its Gaussian -> ``image_features``, ``deviation``; y class;
r(z | y) = N(r_mu, r_sigma) -> ``class_means``, ``class_deviations``; alpha_L2R, alpha_CMI -> ``norm_weight``,
``kl_weight``.
    z ~ N(mu(x), sigma(x)^2)                                          :meth:`FedSR.losses`
    l_L2R = mean |z|                                                  as before
    l_CMI = mean KL(N(mu(x), sigma(x)^2) | N(r_mu, r_sigma^2) of y)   :func:`gaussian_kl`
    CE(z) + alpha_L2R l_L2R + alpha_CMI l_CMI                         :meth:`FedSR.losses`

Deviations:
    * Standard deviation: In the released code, one new layer computes mu and sigma; fedvlp computes sigma as a softplus
      of a linear map of CLIP's feature mu. It starts at 0.02, so training starts from zero-shot CLIP.
    * Norm: The paper and a benchmark square the length in l_L2R; the released code and fedvlp do not.
    * Class Gaussians: Clients of the released code keep their Gaussians and scale z before the comparison; fedvlp
      averages them like all other parameters, so that clients share them, as the paper requires.
    * Evaluation: The released code averages the probabilities of several draws; fedvlp classifies by mu, so that a
      prediction does not depend on draws.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.protocols import Inputs
from fedvlp.methods.image_tower import ImageTowerLearner
from fedvlp.utils.ranges import Names, NonNegativeFloat


class FedSR(ImageTowerLearner):
    """CLIP's image tower, trained on random features that are kept short and close to their class's Gaussian.

    Args:
        norm_weight: Weight alpha_L2R of the features' length, at least 0.
        kl_weight: Weight alpha_CMI of the divergence from the class's Gaussian, at least 0.
        options: Head, rates and optimizer, as in :class:`.ImageTowerLearner`.
    """

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        norm_weight: NonNegativeFloat = 0.01,
        kl_weight: NonNegativeFloat = 0.001,
        **options: Any,
    ) -> None:
        super().__init__(class_names, clip, **options)
        self.norm_weight = norm_weight
        self.kl_weight = kl_weight
        width = self.clip.embed_dim
        self.deviation = nn.Linear(width, width)
        # Training starts near zero-shot CLIP: standard deviations are small and do not depend on the image.
        nn.init.zeros_(self.deviation.weight)
        nn.init.constant_(self.deviation.bias, -4.0)  # softplus(-4) = 0.018
        self.class_means = nn.Parameter(torch.zeros(len(class_names), width))
        self.class_deviations = nn.Parameter(torch.ones(len(class_names), width))  # r_sigma is their softplus

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the cross-entropy of drawn features, plus their weighted mean length and divergence."""
        means = self.image_features(self.precomputed(inputs)["images"]).float()
        deviations = F.softplus(self.deviation(means).float())
        # Reparametrise, so that the draw has a gradient for mean and standard deviation.
        features = means + deviations * torch.randn(means.shape).to(means.device, non_blocking=True)
        cross_entropy = F.cross_entropy(self.logits(features), labels)
        length = features.norm(dim=1).mean()
        class_deviations = F.softplus(self.class_deviations[labels])
        divergence = gaussian_kl(means, deviations, self.class_means[labels], class_deviations).mean()
        loss = cross_entropy + self.norm_weight * length + self.kl_weight * divergence
        return {"cross_entropy": cross_entropy, "length": length, "divergence": divergence, "loss": loss}


def gaussian_kl(
    means: Float[Tensor, "B d"],
    deviations: Float[Tensor, "B d"],
    other_means: Float[Tensor, "B d"],
    other_deviations: Float[Tensor, "B d"],
) -> Float[Tensor, "B"]:
    """Compute KL(N | N') of Gaussians with independent elements.

    >>> one = torch.ones(1, 1)
    >>> gaussian_kl(3 * one, one, one, one)  # half of the squared distance
    tensor([2.])
    """
    spread = deviations.square() + (means - other_means).square()
    divergence = (other_deviations / deviations).log() + spread / (2 * other_deviations.square()) - 0.5
    return divergence.sum(1)
