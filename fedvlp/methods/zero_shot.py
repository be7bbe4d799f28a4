"""Zero-shot CLIP: class names in hand-written templates, and nothing learned.

Paper: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021.

Symbols: x image, f(x) image feature, w_c text feature of class c, tau temperature (1 / logit scale).
    p(c | x) = softmax_c(cos(w_c, f(x)) / tau)    :meth:`ZeroShotCLIP.forward`

Departures: none.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec, ZeroShotClassifier, load_clip
from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import Inputs
from fedvlp.utils.ranges import Names, Templates


class ZeroShotCLIP(FederatedModule):
    """Classifies with hand-written prompts; trains and sends nothing.

    Args:
        class_names: The classes, in the order of the labels.
        clip: The frozen CLIP: see ``load_clip``.
        templates: How many of CLIP's templates are averaged: 1 is "a photo of a {}.", 60 the ensemble, at most 80. Or
            templates with a `{}` each, such as "a histopathology image of {}".
    """

    clip: CLIP

    def __init__(
        self, class_names: Names, clip: CLIPSpec | CLIP | str = "ViT-B-16", *, templates: Templates | list[str] = 1
    ) -> None:
        super().__init__()
        self.set_backbone(load_clip(clip))
        self.class_names = class_names
        self.classifier = ZeroShotClassifier(self.clip, class_names, templates)

    def baseline(self) -> ZeroShotCLIP:
        """Returns itself: other methods are compared with it, and it has no rounds of its own."""
        return self

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Returns the logits cos(w_c, f(x)) / tau."""
        return self.classifier(self.precomputed(inputs)["features"])
