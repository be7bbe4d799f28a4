"""Zero-shot CLIP as a teacher: what several methods hold their prompts to."""

from __future__ import annotations

from functools import cached_property

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fedvlp.clip import CLIP, zero_shot_text_features
from fedvlp.ops import cosine_logits, distillation_kl


class ZeroShotTeacher:
    """Gives zero-shot CLIP's logits, from the mean over templates of the classes' text features.

    Args:
        clip: The frozen CLIP, shared and not copied.
        class_names: The classes, in the order of the labels.
        templates: How many of CLIP's templates are averaged, in [1, 80].
    """

    def __init__(self, clip: CLIP, class_names: list[str], templates: int) -> None:
        self.clip = clip
        self.class_names = class_names
        self.templates = templates

    @cached_property
    def text_features(self) -> Float[Tensor, "C d"]:
        """The classifier, computed when it is first asked for."""
        return zero_shot_text_features(self.clip, self.class_names, self.templates)

    def __call__(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B C"]:
        """Returns the logits of image features."""
        return cosine_logits(features, self.text_features, self.clip.logit_scale)


def distillation_losses(
    logits: Float[Tensor, "B C"], labels: Int[Tensor, "B"], teacher: Float[Tensor, "B C"], kl_weight: float
) -> dict[str, Tensor]:
    """Returns the cross-entropy, KL(teacher || student) as `kl`, and their weighted sum as `loss` (TRIP, Eq. 12).

    Args:
        logits: The student's.
        labels: Each image's class.
        teacher: The teacher's logits, without a gradient.
        kl_weight: beta, the weight of the divergence.
    """
    cross_entropy = F.cross_entropy(logits, labels)
    divergence = distillation_kl(teacher, logits)
    return {"cross_entropy": cross_entropy, "kl": divergence, "loss": cross_entropy + kl_weight * divergence}
