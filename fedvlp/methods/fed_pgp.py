"""FedPGP: a shared prompt, pulled towards handwritten text, and a personal low-rank part per client.

Paper: Cui et al., "Harmonizing Generalization and Personalization in Federated Prompt Learning", ICML 2024.

Symbols: p_G, L x D -> ``global_prompt``; U_i, L x b, and V_i, b x D -> ``local_left``, ``local_right``; b -> ``rank``;
z_C feature of "a photo of a [class]." -> ``written.text_features``; z_G, z_i features under p_G and p_i -> ``texts``
[2, C, d]; mu -> ``contrast_weight``; tau of the contrast -> ``temperature``.
    p_i = p_G + U_i V_i                                                           :meth:`FedPGP.client_prompt`
    L_con = -log(e^(cos(z_G, z_C) / tau) / (e^(cos(z_G, z_C) / tau) + e^(cos(z_G, z_i) / tau)))
                                                                                  :meth:`FedPGP.contrast`
    L = L_ce under p_i + mu L_con                                                 :meth:`FedPGP.losses`
    p_G <- sum_k |S_k| p_G,k / sum_k |S_k|; U_i and V_i stay                      :class:`.FedAvg`

Deviations:
    * z_C: The released code has the letter X in place of words; fedvlp uses a handwritten prompt, as the paper does.
    * Contrast: Like the released code, fedvlp contrasts the three features of each class and averages over classes.
    * Values: The released code's defaults are rank 4 and mu 1; fedvlp uses its script's rank 8, mu 0.5 and tau 0.5.
    * Second prompt: The released script has a second prompt, but its logits are never correct; fedvlp omits it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedvlp.clip import CLIP, CLIPSpec, ZeroShotClassifier, cosine_logits
from fedvlp.core.protocols import Inputs
from fedvlp.methods.prompts import PersonalPromptLearner
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveFloat, PositiveInt


class FedPGP(PersonalPromptLearner):
    """A shared prompt plus a personal low-rank part per client.

    Args:
        rank: Maximum rank b of the client's part.
        contrast_weight: Weight mu of the contrast, at least 0.
        temperature: Temperature tau of the contrast, above 0.
        options: Prompt length, evaluation of held-out domains and optimizer, as in :class:`.PersonalPromptLearner`.
    """

    personal = ("local_left", "local_right")

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        rank: PositiveInt = 8,
        contrast_weight: NonNegativeFloat = 0.5,
        temperature: PositiveFloat = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(class_names, clip, **options)
        self.contrast_weight = contrast_weight
        self.temperature = temperature
        self.written = ZeroShotClassifier(self.clip, class_names, templates=1)
        # Small, so that p_i starts near p_G; a zero factor would give the other factor no gradient.
        self.local_left = nn.Parameter(0.02 * torch.randn(len(self.global_prompt), rank))
        self.local_right = nn.Parameter(0.02 * torch.randn(rank, self.clip.text_width))

    def client_prompt(self) -> Float[Tensor, "L D"]:
        """Compute p_i = p_G + U_i V_i."""
        return self.global_prompt + self.local_left @ self.local_right

    def contrast(self, texts: Float[Tensor, "2 C d"]) -> Float[Tensor, ""]:
        """Compute the mean of L_con over classes from their text features under p_G and p_i."""
        shared = texts[0].float()
        wanted = F.cosine_similarity(shared, self.written.text_features, dim=-1)  # [C]
        unwanted = F.cosine_similarity(shared, texts[1].float(), dim=-1)
        # -log(e^a / (e^a + e^b)) = log(1 + e^(b - a))
        return F.softplus((unwanted - wanted) / self.temperature).mean()

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the cross-entropy of a batch under p_i plus mu times the contrast."""
        texts = self.text(torch.stack([self.global_prompt, self.client_prompt()]))  # [2, C, d]
        logits = cosine_logits(self.precomputed(inputs)["features"], texts[1], self.clip.logit_scale)
        cross_entropy = F.cross_entropy(logits, labels)
        contrast = self.contrast(texts)
        loss = cross_entropy + self.contrast_weight * contrast
        return {"cross_entropy": cross_entropy, "contrast": contrast, "loss": loss}
