"""FedCLIP: an adapter that weights the elements of CLIP's image feature, learned by all clients and averaged.

Paper: Lu et al., "FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning", IEEE Data
Engineering Bulletin 2023.

Symbols: f(x) image feature I, not normalised -> ``features`` [B, d]; g attention adapter -> ``adapter``; t_c text
feature T of class c -> ``text_features`` [C, d]; s scale -> ``clip.logit_scale``; B images of a batch.
    att = g(I) = softmax(W_2 tanh(W_1 I + b_1) + b_2), I* = att * I   :meth:`FedCLIP.adapted`
    p(c | x) = softmax_c(s cos(I*, t_c))                              :meth:`FedCLIP.forward`
    (l(S, [1..B]) + l(S^T, [1..B])) / 2, S_ij = s cos(I*_i, t_{y_j})  :func:`contrastive_loss`
l is the cross-entropy. ``loss: cross_entropy`` uses -log p(y | x) instead, as many runs of FedCLIP do.
    g <- sum_k |S_k| g_k / sum_k |S_k|                                :class:`.FedAvg`

Deviations:
    * Loss: The paper's loss pushes an image away from all other texts of its batch, even of its own class; fedvlp uses
      it by default, and offers ``cross_entropy``, which does not.
    * Texts: The released code keeps the folder's name in "a picture of a <class>"; fedvlp replaces `_` by a space, as
      for all methods.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import Adam

from fedvlp.clip import CLIP, CLIPSpec, cosine_logits, zero_shot_text_features
from fedvlp.core.protocols import Inputs, Targets
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.ranges import Names


class FedCLIP(PromptLearner):
    """An adapter of the image feature, shared by all clients; the text features remain zero-shot CLIP's.

    Args:
        loss: The paper's ``contrastive`` loss between the images and texts of a batch, or ``cross_entropy``, which
            also supports several labels per image.
        optimizer: Factory of the optimizer for local training. The method's config sets the released code's second beta
            of 0.98, because the command line can read only single numbers from a default.
    """

    supports_several_labels = True
    text_features: Tensor  # [C, d]

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        loss: Literal["contrastive", "cross_entropy"] = "contrastive",
        optimizer: OptimizerCallable = lambda parameters: Adam(parameters, lr=5e-5, eps=1e-6, weight_decay=0.2),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.loss_name = loss
        self.supports_several_labels = loss == "cross_entropy"
        width = self.clip.embed_dim
        self.adapter = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Softmax(dim=-1))
        texts = zero_shot_text_features(self.clip, class_names, "a picture of a {}")
        self.register_buffer("text_features", texts, persistent=False)

    def adapted(self, inputs: Inputs) -> Float[Tensor, "B d"]:
        """Compute I* = g(I) * I, the image features weighted element by element, not normalised."""
        features = self.precomputed(inputs)["features"]
        return self.adapter(features) * features

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits s cos(I*, t_c)."""
        return cosine_logits(self.adapted(inputs), self.text_features, self.clip.logit_scale)

    def losses(self, inputs: Inputs, labels: Targets) -> dict[str, Tensor]:
        """Compute the contrastive loss or the cross-entropy of a batch."""
        if self.loss_name == "cross_entropy":
            return super().losses(inputs, labels)
        # Each image's text; images of the same class have equal texts.
        texts = self.text_features[labels]
        return {"loss": contrastive_loss(cosine_logits(self.adapted(inputs), texts, self.clip.logit_scale))}

    image_features = adapted  # for ``fedvlp explain``


def contrastive_loss(logits: Float[Tensor, "B B"]) -> Float[Tensor, ""]:
    """Compute the mean cross-entropy over rows (images) and columns (their texts), with targets on the diagonal.

    >>> contrastive_loss(torch.zeros(2, 2))  # log 2
    tensor(0.6931)
    """
    targets: Int[Tensor, "B"] = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2
