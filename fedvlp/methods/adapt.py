"""ADAPT: Fed-DPT's prompts, trained by cross-entropy over the classes and over the domains.

Paper: Wei et al., ADAPT, the later version of "Dual prompt tuning for domain-aware federated learning", arXiv
2310.03103. Symbols as in :mod:`.fed_dpt`; h_j joint feature of image token j's output -> ``tokens``.
    f_T^k(c), f_V, w, f_T(c), Eqs. 2-5                :class:`.FedDPT`
    P^k <- alpha P^k + (1 - alpha) [P^k], Eq. 6       :class:`.PerDomainPrompts`
    cross-entropy of f_V and f_T, in words            :meth:`ADAPT.losses`
    domain correspondence, in words                   :meth:`ADAPT.correspondence`

Deviations:
    * Domain correspondence: The paper has a loss "between each pair of visual and textual outputs", without a formula
      or weight. Following these words, fedvlp uses -(1/n) sum_j log softmax_k(cos(h_j, f_T^k(y)) / tau)[j] with weight
      1. With ``domain_loss: attention``, it uses -log w_i of the client's domain i.
    * Loss: The paper's Algorithm 1 still prints Fed-DPT's loss; fedvlp follows the text, which has two cross-entropies.
    * Text tokens: The abstract's 0.08 M parameters imply a width of 768; fedvlp uses CLIP's 512, as the text does.
    * Fed-DPT: Its deviations apply as well, except for the loss.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec, cosine_logits
from fedvlp.core.protocols import Inputs
from fedvlp.methods.fed_dpt import DualFeatures, FedDPT
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, NonNegativeFloat


class ADAPT(FedDPT):
    """Fed-DPT with cross-entropy, and with a loss that ties each image token to its domain's text prompt.

    Args:
        domains: Names of the source domains, in the order of the clients' domains.
        domain_loss: Domain-correspondence loss: over ``pairs`` of image tokens and text prompts, or a cross-entropy
            that makes the ``attention`` to image tokens identify the client's domain. The latter is 0 outside a
            federation, where images have no domain.
        domain_weight: Weight of that loss, at least 0. It must be 0 unless ``components`` is ``domain``.
        options: Options of :class:`.FedDPT`.
    """

    def __init__(
        self,
        class_names: Names,
        domains: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        domain_loss: Literal["pairs", "attention"] = "pairs",
        domain_weight: NonNegativeFloat = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(class_names, domains, clip, **options)
        if domain_weight and not self.mixes:
            raise UserError(f"Expected a domain_weight of 0 without components: domain; got {domain_weight}.")
        self.domain_loss = domain_loss
        self.domain_weight = domain_weight

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the cross-entropy over classes plus the weighted domain correspondence."""
        features = self.features(inputs)
        cross_entropy = F.cross_entropy(features.logits(self.clip.logit_scale), labels)
        if not self.domain_weight:
            return {"cross_entropy": cross_entropy, "loss": cross_entropy}
        correspondence = self.correspondence(features, labels)
        loss = cross_entropy + self.domain_weight * correspondence
        return {"cross_entropy": cross_entropy, "domain_correspondence": correspondence, "loss": loss}

    def correspondence(self, features: DualFeatures, labels: Int[Tensor, "B"]) -> Float[Tensor, ""]:
        """Compute the domain-correspondence loss selected by ``domain_loss``."""
        if self.domain_loss == "pairs":
            return pairs_correspondence(features.tokens, features.text, labels, self.clip.logit_scale)
        if self.domain is None:
            return features.scores.new_zeros(())
        return F.cross_entropy(features.scores / self.temperature, torch.full_like(labels, self.domain))


def pairs_correspondence(
    tokens: Float[Tensor, "B domains d"], texts: Float[Tensor, "domains C d"], labels: Int[Tensor, "B"], scale: float
) -> Float[Tensor, ""]:
    """Compute -(1/n) sum_j log softmax_k(cos(h_j, f_T^k(y)) / tau)[j], the mean over images.

    `tokens` are h_j and `texts` f_T^k(c), both of any length; `scale` is 1 / tau.

    >>> texts = torch.eye(2)[:, None]  # two domains, one class
    >>> loss = pairs_correspondence(torch.eye(2)[None], texts, torch.tensor([0]), scale=1.0)
    >>> round(loss.item(), 4)  # log(1 + 1/e)
    0.3133
    """
    batch, count = tokens.shape[:2]
    # Each image's class text in every domain.
    own_class = texts[:, labels].transpose(0, 1)  # [B, domains, d]
    # All tokens of an image are compared with the same texts, giving B n rows of n logits.
    repeated = own_class[:, None].expand(-1, count, -1, -1).flatten(0, 1)  # [B * domains, domains, d]
    logits = cosine_logits(tokens.flatten(0, 1), repeated, scale)
    return F.cross_entropy(logits, torch.arange(count, device=tokens.device).repeat(batch))
