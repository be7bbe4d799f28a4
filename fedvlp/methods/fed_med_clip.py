"""FedMedCLIP: a shared adapter of masked layers, as in FedCLIP, and a personal masked classifier that complements it.

Paper: Wu and Chaddad, "Federated CLIP for Resource-Efficient Heterogeneous Medical Image Classification", AAAI 2026.

Symbols: I image feature; att, "FAM" -> ``adapter``; I~ -> ``adapted``; t_c text feature of class c; kappa ->
``threshold``; MLP -> ``classifier``; p, q [B, C], the classifier's scores and the adapter's cosines; H entropy; w ->
``classifier_share``; T -> ``temperature``; lambda -> ``similarity_weight``.
    u_i = mean_j |W_ij|, m_i = [u_i - kappa_i > 0.01]: x -> (m W) x + b              :class:`MaskedLinear`
    I~ = att(I) I, att = softmax(M_2 relu(norm(M_1 I)))                              :meth:`FedMedCLIP.adapted`
    L_contr of I~, as FedCLIP; L_MLP = ce(MLP(I~ / |I~|), y)                         :meth:`FedMedCLIP.losses`
    L_sim = mean_c sum_i w p^_ic log(p^_ic / q^_ic) + (1 - w) q^_ic log(q^_ic / p^_ic),
        ^ softmax over the images i of a batch, of values over T                     :func:`similarity_loss`
    w = H_FAM / (H_FAM + H_MLP), mean entropies                                      :func:`classifier_share`
    L = L_contr + L_MLP + lambda L_sim                                               :meth:`FedMedCLIP.losses`
    p(c | x) = w p_MLP + (1 - w) p_FAM, w of each image                              :meth:`FedMedCLIP.forward`
    att <- plain mean over clients; MLP stays                                        :class:`.FedAvg`

Deviations:
    * Thresholds: The paper does not state how kappa learns. In the released code, its gradient is non-zero only if |u -
      kappa| > 1, and u starts near 0.02, so the masks stay open. In fedvlp, the gradient passes if |u - kappa| <= 1.
    * Closed layers: The released code resets kappa to 0 if at most 1 % of a layer's outputs are left; fedvlp does not,
      because learned thresholds can open again.
    * Weights of the divergences: The released code uses 1/2 for both. A commented-out line has w / 2 and (1 - w) / 2
      with the mean of each image's w. In fedvlp, they are w and 1 - w, with w from the batch's mean entropies.
    * Entropies: The released code applies a softmax to probabilities before their logarithm; fedvlp does not, because
      they are already normalised.
    * Learning rates: The released README states 5e-5 and 1e-3, the program 5e-4 and 1e-4; fedvlp uses the program's.
    * Compression: The paper sends compressed half-precision values; fedvlp sends parameters uncompressed.
    * Batches of one image: The released code skips them; fedvlp normalises them as in evaluation.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import AdamW

from fedvlp.clip import CLIP, CLIPSpec, cosine_logits, zero_shot_text_features
from fedvlp.core.protocols import Inputs
from fedvlp.core.strategies import FedAvg
from fedvlp.methods.fed_clip import contrastive_loss
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveFloat, PositiveInt


class FedMedCLIP(PromptLearner):
    """A shared adapter of the image feature, and a personal classifier per client.

    Args:
        hidden_width: Width of the classifier's three hidden layers.
        similarity_weight: Weight lambda of the mutual distillation between adapter and classifier, at least 0.
        temperature: Temperature T of a class's softmax over a batch's images, above 0.
        classifier_lr: Learning rate of the classifier; the optimizer's own rate applies only to the adapter.
        held_out_evaluation: Classifier for held-out domains: the ``shared`` adapter, or the ``mean`` of the
            probabilities under all clients' classifiers.
        optimizer: Factory of the optimizer for local training. The method's config sets the released code's second beta
            of 0.98, because the command line can read only single numbers from a default.
    """

    personal = ("classifier",)
    text_features: Tensor  # [C, d]
    strategy = FedAvg("uniform")  # each client counts once

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        hidden_width: PositiveInt = 512,
        similarity_weight: NonNegativeFloat = 0.04,
        temperature: PositiveFloat = 2.0,
        classifier_lr: PositiveFloat = 1e-4,
        held_out_evaluation: Literal["shared", "mean"] = "shared",
        optimizer: OptimizerCallable = lambda parameters: AdamW(parameters, lr=5e-4, eps=1e-6, weight_decay=0.02),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.similarity_weight = similarity_weight
        self.temperature = temperature
        self.classifier_lr = classifier_lr
        self.held_out_evaluation = held_out_evaluation
        width = self.clip.embed_dim
        norm = nn.LayerNorm(width, elementwise_affine=False)
        self.adapter = nn.Sequential(
            MaskedLinear(width, width), norm, nn.ReLU(), MaskedLinear(width, width), nn.Softmax(dim=-1)
        )
        layers: list[nn.Module] = []
        for inputs in (width, hidden_width, hidden_width):
            layers += [MaskedLinear(inputs, hidden_width), BatchNorm(hidden_width), nn.ReLU()]
        self.classifier = nn.Sequential(*layers, MaskedLinear(hidden_width, len(class_names)))
        texts = zero_shot_text_features(self.clip, class_names, "a picture of a {}")
        self.register_buffer("text_features", texts, persistent=False)

    def parameter_groups(self, trainable: Mapping[str, Tensor]) -> list[Any]:
        """Give the classifier its own learning rate."""
        classifier = {"params": [*self.classifier.parameters()], "lr": self.classifier_lr}
        return [{"params": [*self.adapter.parameters()]}, classifier]

    def adapted(self, inputs: Inputs) -> Float[Tensor, "B d"]:
        """Compute I~, the image features weighted element by element, not normalised."""
        features = self.precomputed(inputs)["features"]
        return self.adapter(features) * features

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute log p(c | x), or the adapter's logits if there is no client."""
        adapted = self.adapted(inputs)
        logits = cosine_logits(adapted, self.text_features, self.clip.logit_scale)
        if not self.uses_personal:
            return logits
        own = self.classifier(F.normalize(adapted, dim=-1)).float()
        share = classifier_share(entropies(logits), entropies(own))[:, None]
        # Compute the mixture's logarithm directly, because the mixture may underflow.
        return torch.logaddexp(share.log() + own.log_softmax(-1), (1 - share).log() + logits.log_softmax(-1))

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute L_contr + L_MLP + lambda L_sim of a batch."""
        adapted = self.adapted(inputs)
        texts = self.text_features
        cosines = cosine_logits(adapted, texts, scale=1.0)
        own = self.classifier(F.normalize(adapted, dim=-1)).float()
        with torch.no_grad():
            entropy = entropies(self.clip.logit_scale * cosines).mean()
            share = classifier_share(entropy, entropies(own).mean())
        losses = {
            "contrast": contrastive_loss(cosine_logits(adapted, texts[labels], self.clip.logit_scale)),
            "cross_entropy": F.cross_entropy(own, labels),
            "similarity": similarity_loss(own / self.temperature, cosines / self.temperature, share),
        }
        loss = losses["contrast"] + losses["cross_entropy"] + self.similarity_weight * losses["similarity"]
        return {**losses, "loss": loss}


class MaskedLinear(nn.Linear):
    """A linear map that masks an output's weights, but not its bias, if their mean size is at most kappa + 0.01."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.threshold = nn.Parameter(torch.zeros(outputs))

    def forward(self, values: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """Compute (m W) x + b."""
        distance = self.weight.abs().mean(1) - self.threshold
        # Straight-through estimator: the value of a step with the gradient of a ramp.
        ramp = distance.clamp(-1, 1)
        mask = (distance > 0.01).float() + ramp - ramp.detach()
        return mask * F.linear(values, self.weight) + self.bias


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation that treats a batch of one image, which has no variance, as in evaluation."""

    def forward(self, values: Float[Tensor, "B n"]) -> Float[Tensor, "B n"]:
        """Normalise the values."""
        if self.training and len(values) > 1:
            return super().forward(values)
        return F.batch_norm(values, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def entropies(logits: Float[Tensor, "*batch C"]) -> Float[Tensor, "*batch"]:
    """Compute the entropy of each image's probabilities, in nats."""
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def classifier_share(adapter: Float[Tensor, "*batch"], classifier: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Compute w from both entropies: the less certain model weighs less; 1/2 if both entropies are 0.

    >>> classifier_share(torch.tensor([0.9, 0.0]), torch.tensor([0.3, 0.0]))
    tensor([0.7500, 0.5000])
    """
    tiny = torch.finfo(torch.float32).tiny  # avoids 0 / 0
    return adapter.clamp_min(tiny) / (adapter.clamp_min(tiny) + classifier.clamp_min(tiny))


def similarity_loss(
    classifier: Float[Tensor, "B C"], adapter: Float[Tensor, "B C"], share: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Compute L_sim, in which the more certain model is the stronger teacher.

    The classifier's scores and the adapter's cosines are divided by T; ``share`` is the classifier's weight w.
    """
    log_p = classifier.log_softmax(0)
    log_q = adapter.log_softmax(0)
    each = share * log_p.exp() * (log_p - log_q) + (1 - share) * log_q.exp() * (log_q - log_p)
    return each.sum(0).mean()
