"""FedPHA: a shared prompt and a personal prompt per client, trained to differ from each other.

Paper: Fang et al., "FedPHA: Federated Prompt Learning for Heterogeneous Client Adaptation", ICML 2025. The equations
follow its released code (``GL_SVDMSE``, prompts of equal length).

Symbols: p_G, p_k, L x D -> ``global_prompt``, ``local_prompt``; t(p), text features of length 1 -> ``own``, ``shared``
and ``target``, under p_k, p_G and p_k'; V_1, the main directions of p_G -> the first rows of ``directions``; rho ->
``null_share``; alpha -> ``margin``.
    p_G = U S V^T, V = [V_1, V_2], V_1 of int((1 - rho) L) directions    :func:`projected`
    p_k' = p_k V_2 V_2^T                                                 :func:`projected`
    L_pull = mean over classes and elements of (t(p_k) - t(p_k'))^2      :meth:`FedPHA.losses`
    L_push = mean over classes of max(0, alpha - |t(p_k) - t(p_G)|)      :meth:`FedPHA.losses`
    L = L_ce under p_k + L_ce under p_G + L_pull + L_push                :meth:`FedPHA.losses`
    p_G <- sum_k |S_k| p_G,k / sum_k |S_k|; p_k stays                    :class:`.FedAvg`

Deviations:
    * Projection: The released code's decomposition has only L directions, so p_k' keeps only the part of p_k along the
      minor directions (``projection: minor``). By default, fedvlp completes V to D directions as in FedPR, because the
      abstract disentangles conflicts with the global prompt. So p_k' is p_k without its part along the main directions
      of p_G. The paper's equations were not compared.
    * Gradient of V: The released code differentiates the decomposition; fedvlp does not, because the gradient of
      singular vectors is unbounded if two singular values are equal.
    * Prompt lengths: The paper also gives each client its own length, and the released code then reads all texts where
      the longest one ends; fedvlp gives all prompts the same length.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec, cosine_logits
from fedvlp.core.protocols import Inputs
from fedvlp.methods.prompts import PersonalPromptLearner
from fedvlp.utils.ranges import ClosedFraction, Names, NonNegativeFloat

Projection = Literal["complement", "minor"]


class FedPHA(PersonalPromptLearner):
    """A shared prompt and a personal prompt per client; only the personal prompt classifies the client's images.

    Args:
        null_share: Share rho of the global prompt's L directions that are not main directions, in [0, 1]. The number of
            main directions, (1 - rho) L, is truncated.
        projection: Directions kept in p_k': the ``complement`` of the main directions, or only the ``minor`` directions
            of the global prompt, as in the released code.
        margin: Distance alpha, at least 0, beyond which a class's two text features (at most 2 apart) are not pushed.
        options: Prompt length, evaluation of held-out domains and optimizer, as in :class:`.PersonalPromptLearner`.
    """

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        null_share: ClosedFraction = 0.8,
        projection: Projection = "complement",
        margin: NonNegativeFloat = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(class_names, clip, **options)
        self.null_share = null_share
        self.projection: Projection = projection
        self.margin = margin

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the cross-entropies of a batch under p_k and p_G, plus L_pull and L_push."""
        features = self.precomputed(inputs)["features"]
        projection = projected(self.local_prompt, self.global_prompt, self.null_share, self.projection)
        prompts = torch.stack([self.local_prompt, self.global_prompt, projection])
        own, shared, target = F.normalize(self.text(prompts).float(), dim=-1)  # [C, d] each
        losses = {
            "cross_entropy": F.cross_entropy(cosine_logits(features, own, self.clip.logit_scale), labels),
            "shared_cross_entropy": F.cross_entropy(cosine_logits(features, shared, self.clip.logit_scale), labels),
            "pull": F.mse_loss(own, target),
            "push": F.relu(self.margin - (own - shared).norm(dim=-1)).mean(),
        }
        return {**losses, "loss": torch.stack([*losses.values()]).sum()}


def projected(
    local: Float[Tensor, "L D"], shared: Float[Tensor, "L D"], null_share: float, projection: Projection
) -> Float[Tensor, "L D"]:
    """Project p_k to p_k', given p_G and rho, without a gradient for p_G.

    >>> shared = torch.tensor([[0.0, 5.0, 0.0], [3.0, 0.0, 0.0]])
    >>> local = torch.tensor([[1.0, 2.0, 4.0], [0.0, 7.0, 0.0]])
    >>> projected(local, shared, 0.5, "complement").tolist()
    [[1.0, 0.0, 4.0], [0.0, 0.0, 0.0]]
    >>> projected(local, shared, 0.5, "minor").tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    # Directions of large singular values come first.
    directions: Tensor = torch.linalg.svd(shared.detach().float(), full_matrices=False).Vh
    main = int(len(directions) * (1 - null_share))
    if projection == "minor":
        return local @ directions[main:].mT @ directions[main:]
    return local - local @ directions[:main].mT @ directions[:main]
