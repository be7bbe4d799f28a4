"""FedCOF: ridge regression in one round, with second moments estimated from the variation of clients' class means.

Paper: Goswami et al., "Covariances for Free: Exploiting Mean Distributions for Training-free Federated Learning",
NeurIPS 2025.

Symbols: m_kc mean feature of client k's n_kc images of class c; m_c mean over all n_c from K_c clients; m mean of all N
images; gamma -> ``shrinkage``; alpha -> ``text_weight``.
    S_c = 1 / (K_c - 1) sum_k n_kc (m_kc - m_c)(m_kc - m_c)^T
    G = sum_c (n_c - 1) (S_c + gamma I) + N m m^T                     :func:`estimated_gram`
    W = G^-1 B, B_c = n_c m_c
    w_c = W_c / |W_c| + alpha t_c, p = softmax(s <w_c, x>)            :meth:`FedCOF.classifier`
S_c is unbiased if the images of a class are divided at random among clients. It depends on the partition, and the
server must see each client's class means.

Deviations:
    * Classes that only one client has: The released code draws around the client's mean in its fine-tuning script, and
      takes S_c = 0 in its one-shot script; fedvlp takes 0.
    * Shrinkage: The released code uses gamma 1 or 0.1, for features that are not normalised; fedvlp uses 0.003 for unit
      features, chosen on source validation.
    * Text: The paper has no text features; fedvlp adds them with weight alpha, as in :mod:`.closed_form`.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.state import State
from fedvlp.methods.closed_form import ClosedFormOfClients
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveFloat


class FedCOF(ClosedFormOfClients):
    """Ridge regression on a covariance that the server estimates from the clients' class means.

    Args:
        shrinkage: Multiple gamma of the identity added to each class's covariance, above 0.
        text_weight: Weight alpha of zero-shot CLIP's classifier, at least 0.
    """

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        shrinkage: PositiveFloat = 0.003,
        text_weight: NonNegativeFloat = 0.25,
    ) -> None:
        super().__init__(class_names, clip, text_weight=text_weight)
        self.shrinkage = shrinkage

    def classifier_from_clients(self, counts: Float[Tensor, "K C"], sums: Float[Tensor, "K C d"]) -> State:
        """Compute all w_c from each client's image counts and feature sums per class."""
        gram = estimated_gram(counts, sums, self.shrinkage)
        solution = sums.sum(0) @ torch.linalg.pinv(gram, hermitian=True)
        texts = self.text_features.double().cpu()
        rows = torch.where(counts.sum(0)[:, None] > 0, F.normalize(solution, dim=-1), texts)
        return {"weight": rows + self.text_weight * texts}


def estimated_gram(
    counts: Float[Tensor, "K C"], sums: Float[Tensor, "K C d"], shrinkage: float
) -> Float[Tensor, "d d"]:
    """Estimate sum_i x_i x_i^T from each client's image counts and feature sums per class.

    >>> one = torch.tensor([[1.0], [1.0]])  # two clients with one image each, features 1 and 3
    >>> estimated_gram(one, torch.tensor([[[1.0]], [[3.0]]]), shrinkage=0.5)  # (2 - 1) (2 + 0.5) + 2 * 2 * 2
    tensor([[10.5000]])
    """
    images = counts.sum(0)
    means = sums.sum(0) / images.clamp_min(1)[:, None]
    # A factor of n_kc (m_kc - m_c)(m_kc - m_c)^T; zero for a client without images of a class.
    deviations = (sums - counts[..., None] * means) / counts.clamp_min(1).sqrt()[..., None]
    freedom = ((counts > 0).sum(0) - 1).clamp_min(1)
    factors = (images - 1).clamp_min(0)
    scaled = deviations * (factors / freedom).sqrt()[:, None]
    within = torch.einsum("kci,kcj->ij", scaled, scaled)
    total = sums.sum((0, 1))
    identity = torch.eye(len(total), dtype=total.dtype)
    return within + shrinkage * factors.sum() * identity + torch.outer(total, total) / images.sum()
