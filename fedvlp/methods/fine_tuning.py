"""Fine-tuning: all clients train CLIP's own weights, and the server averages them, under FedAvg or FedProx.

Papers: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017
(FedAvg). Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (FedProx), both as in the tables of
TRIP and PLAN. Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022 (linear head).

Symbols: f(x) feature of the trained image tower -> ``image_features`` [B, d]; t_c text feature of class c; s scale
-> ``logit_scale``; W, b -> ``head``; theta trained parameters; mu -> ``FedProx.weight``.
    p(c | x) = softmax_c(s cos(f(x), t_c))                          CLIP; :meth:`FineTuning.logits`
    p(c | x) = softmax_c(W_c f(x) / |f(x)| + b_c), W_c = s t_c at first  Wortsman, Section 2; :class:`.NormalizedLinear`
    theta <- sum_k |S_k| theta_k / sum_k |S_k|                      McMahan, Algorithm 1; :class:`.FedAvg`
    CE + mu / 2 |theta - theta_t|^2                                 Li, Eq. 2; :class:`.FedProx`

Deviations:
    * Trained parameters: The tables of TRIP and PLAN count 149.62 M parameters, all of CLIP, and state neither loss nor
      code; fedvlp trains the image tower by cross-entropy, with the text features of "a photo of a [class]." as the
      classifier. ``towers: both`` trains all parameters.
    * Optimizer: The papers state none; fedvlp uses AdamW with a small rate that decreases from the top layer to the
      bottom (``layer_decay``) and no weight decay for vectors. At larger rates, CLIP forgets its pretraining (figures
      in the card).
    * Logit scale: CLIP's training limits it to 100; fedvlp trains it only with ``towers: both``, without a limit.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.clip import CLIP, CLIPSpec, cosine_logits
from fedvlp.clip.packing import make_rows
from fedvlp.clip.prompted_text import PromptFeatureCache
from fedvlp.clip.text_towers import make_text_tower
from fedvlp.clip.zero_shot import tokenize_classes
from fedvlp.methods.image_tower import ImageTowerLearner
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names


class FineTuning(ImageTowerLearner):
    """CLIP's image tower, or all of CLIP, trained by all clients.

    Args:
        towers: Trained part: the ``image`` tower, or ``both`` towers and the logit scale.
        options: Head, rates and optimizer, as in :class:`.ImageTowerLearner`.
    """

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        towers: Literal["image", "both"] = "image",
        **options: Any,
    ) -> None:
        super().__init__(class_names, clip, **options)
        if towers == "both" and self.head is not None:
            raise UserError("A linear head uses no text features, so the text tower can't be trained. Use head text.")
        self.text = TextClassifier(self.clip, class_names) if towers == "both" else None
        # As in CLIP's own training, the logarithm of the scale is learned.
        if self.text is not None:
            self.logit_scale = nn.Parameter(torch.tensor(self.clip.logit_scale).log())

    def logits(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B C"]:
        """Compute the logits of features; their lengths do not matter."""
        if self.text is None:
            return super().logits(features)
        return self.logit_scale.exp() * cosine_logits(features, self.text(), 1.0)


class TextClassifier(nn.Module):
    """Text features of the classes in "a photo of a {}.", computed by a trained float32 copy of CLIP's text tower.

    Its parameters are named ``language.<open_clip's name>``.
    """

    def __init__(self, clip: CLIP, class_names: list[str]) -> None:
        super().__init__()
        # open_clip's CLIP has the text tower's parts at the top level; all other models have a text module.
        model: Any = clip.model
        if hasattr(model, "text"):
            text = deepcopy(model.text)
        else:
            text = deepcopy(model, {id(model.visual): nn.Identity()})
            del text.visual, text.logit_scale, text.logit_bias
        self.language: nn.Module = text.float().requires_grad_(True)
        self._tower = make_text_tower(self.language, clip.token_layout)
        self.rows = make_rows(self._tower, tokenize_classes(clip, class_names))
        self._cache = PromptFeatureCache(capacity=1)  # an entry holds a copy of all weights

    def forward(self) -> Float[Tensor, "C d"]:
        """Compute w_c, not normalised. Without gradients, it is recomputed only after the weights have changed."""
        return self._cache("", lambda *_: self.rows.encode_words(self._tower), *self.language.parameters())

    def train(self, mode: bool = True) -> TextClassifier:
        """Stay in evaluation mode: this disables dropout in Hugging Face's towers; open_clip's own towers have none."""
        return super().train(False)
