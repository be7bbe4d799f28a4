"""Zero-shot CLIP: class names in handwritten templates, without training.

Paper: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021.

Symbols: x image, f(x) image feature, w_c text feature of class c, tau temperature (1 / logit scale).
    p(c | x) = softmax_c(cos(w_c, f(x)) / tau)                   :meth:`ZeroShotCLIP.forward`

Deviations: none.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec, ZeroShotClassifier, cosine_logits, load_clip
from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import Batch, Inputs
from fedvlp.utils.ranges import Names, Templates


class ZeroShotCLIP(FederatedModule):
    """Classifier with handwritten prompts that trains and sends nothing.

    Args:
        class_names: Class names, in the order of the labels.
        clip: Frozen CLIP; see ``load_clip``.
        templates: Number of CLIP's templates to average, in [1, 80]: 1 is "a photo of a {}.", 60 the ensemble.
    """

    supports_several_labels = True
    clip: CLIP

    def __init__(
        self, class_names: Names, clip: CLIPSpec | CLIP | str = "ViT-B-16", *, templates: Templates = 1
    ) -> None:
        super().__init__()
        self.set_backbone(load_clip(clip))
        self.class_names = class_names
        self.classifier = ZeroShotClassifier(self.clip, class_names, templates)

    def baseline(self) -> ZeroShotCLIP:
        """Return itself, since it has no rounds and is the baseline of the other methods."""
        return self

    @torch.no_grad()
    def class_means_baseline(self, batches: Iterable[Batch]) -> ClassMeans | None:
        """Build a classifier from the mean feature of each class; a class without images keeps its text feature."""
        texts = self.classifier.text_features
        sums = torch.zeros_like(texts)  # [C, d]
        for inputs, labels in batches:
            # Images are not encoded just for a baseline.
            if not isinstance(inputs, dict) or "images" in inputs or "features" not in inputs:
                return None
            features = F.normalize(inputs["features"].float(), dim=-1)
            sums += F.one_hot(labels, len(sums)).to(features).T @ features
        means = ClassMeans(self.class_names, self.clip)
        means.register_buffer("weight", torch.where(sums.any(dim=-1, keepdim=True), sums, texts))
        return means

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits cos(w_c, f(x)) / tau."""
        return self.classifier(self.precomputed(inputs)["features"])


class ClassMeans(ZeroShotCLIP):
    """Nearest-class-mean classifier, as FedNCM with ``text_weight: 0``; built by ``class_means_baseline``."""

    has_fixed_classes = True
    supports_several_labels = False
    weight: Tensor  # [C, d]

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits cos(mean of class c, f(x)) / tau."""
        return cosine_logits(self.precomputed(inputs)["features"], self.weight, self.clip.logit_scale)
