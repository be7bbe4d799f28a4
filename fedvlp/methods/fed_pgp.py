"""FedPGP: a prompt of all clients, held to hand-written text, and a low-rank part of each client's own.

Paper: Cui et al., "Harmonizing Generalization and Personalization in Federated Prompt Learning", ICML 2024.

Symbols: p_G, L x D -> ``global_prompt``; U_i, L x b, and V_i, b x D -> ``local_left``, ``local_right``; b -> ``rank``;
z_C feature of "a photo of a [class]." -> ``written.text_features``; z_G, z_i features under p_G and p_i -> ``texts``
[2, C, d]; mu -> ``contrast_weight``; tau of the contrast -> ``temperature``.
    p_i = p_G + U_i V_i                                                           :meth:`FedPGP.prompts`
    L_con = -log(e^(cos(z_G, z_C) / tau) / (e^(cos(z_G, z_C) / tau) + e^(cos(z_G, z_i) / tau)))
                                                                                  :meth:`FedPGP.contrast`
    L = L_ce under p_i + mu L_con                                                 :meth:`FedPGP.training_step`
    p_G <- sum_k |S_k| p_G,k / sum_k |S_k|; U_i and V_i stay                      :class:`.FedAvg`

Departures:
    * The released code measures all images by the clients' own prompts and takes the mean accuracy. Here a domain that
      no client has is classified by p_G alone; ``held_out_evaluation: mean`` takes the clients' mean probabilities.
    * z_C is CLIP's feature of a hand-written prompt, as in the paper. The released code takes that of the letter X, as
      often as the prompt has tokens, in place of words.
    * The contrast is of a class's three features, and its mean over classes is taken, as in the released code.
    * Rank 8, mu 0.5 and tau 0.5 are the released script's; without it the code has rank 4 and mu 1. The script has
      two prompts as well, each with logits of its own, of which the second's are never right; here there is one.
    * No augmentation or schedule, as with PromptFL. Momentum and weight decay are the released code's, from Dassl.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder, ZeroShotClassifier, cosine_logits
from fedvlp.core.protocols import Batch, Inputs
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveFloat, PositiveInt


class FedPGP(PromptLearner):
    """Learns a prompt that is shared and, for each client, a low-rank part that is added to it.

    Args:
        rank: Largest rank b of the client's part.
        contrast_weight: Weight mu of the contrast, at least 0.
        temperature: tau of the contrast, by which cosines are divided.
        prompt_length: Number of learned vectors L of a prompt.
        held_out_evaluation: What classifies images of a domain that no client has: the ``shared`` prompt alone, or the
            ``mean`` of the probabilities under all clients' prompts.
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
        prompt_length: PositiveInt = 16,
        held_out_evaluation: Literal["shared", "mean"] = "shared",
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.001, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.held_out_evaluation = held_out_evaluation
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length)
        self.global_prompt = nn.Parameter(self.text.initial_prompt())  # [L, D]
        self.contrast_weight = contrast_weight
        self.temperature = temperature
        self.written = ZeroShotClassifier(self.clip, class_names, templates=1)
        # Small, so that p_i begins near p_G; a factor of zeros would stop the other's gradient.
        self.local_left = nn.Parameter(0.02 * torch.randn(len(self.global_prompt), rank))
        self.local_right = nn.Parameter(0.02 * torch.randn(rank, self.clip.text_width))

    def prompts(self) -> Float[Tensor, "2 L D"]:
        """Returns p_G and p_i."""
        return torch.stack([self.global_prompt, self.global_prompt + self.local_left @ self.local_right])

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Returns the logits under p_i, or under p_G where the shared part is on its own."""
        # p_G alone is what a domain gets that no client has.
        prompt = self.prompts()[1] if self.uses_personal else self.global_prompt
        return cosine_logits(self.precomputed(inputs)["features"], self.text(prompt), self.clip.logit_scale)

    def contrast(self, texts: Float[Tensor, "2 C d"]) -> Float[Tensor, ""]:
        """Returns the mean of L_con over classes, from their features under p_G and p_i."""
        shared = texts[0].float()
        wanted = F.cosine_similarity(shared, self.written.text_features, dim=-1)  # [C]
        unwanted = F.cosine_similarity(shared, texts[1].float(), dim=-1)
        # -log(e^a / (e^a + e^b)) = log(1 + e^(b - a))
        return F.softplus((unwanted - wanted) / self.temperature).mean()

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Returns the cross-entropy of a batch under p_i plus mu times the contrast."""
        inputs, labels = batch
        texts = self.text(self.prompts())  # [2, C, d]
        logits = cosine_logits(self.precomputed(inputs)["features"], texts[1], self.clip.logit_scale)
        cross_entropy = F.cross_entropy(logits, labels)
        contrast = self.contrast(texts)
        loss = cross_entropy + self.contrast_weight * contrast
        self.log_dict({"cross_entropy": cross_entropy, "contrast": contrast, "loss": loss})
        return loss
