"""Losses and logits that the methods share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def cosine_logits(
    image_features: Float[Tensor, "B d"],
    text_features: Float[Tensor, "C d"] | Float[Tensor, "B C d"],
    scale: float,
) -> Float[Tensor, "B C"]:
    """Returns CLIP's logits, `scale` (1 / tau) times the cosine of each image with each class, in float32.

    Args:
        image_features: f(x), of any length.
        text_features: w_c, of any length: one set for all images, or one set for each image.
        scale: CLIP's logit scale, 100 for OpenAI's models.

    Example:
        >>> cosine_logits(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]), scale=10.0)
        tensor([[6., 8.]])
    """
    with torch.autocast(image_features.device.type, enabled=False):
        images = F.normalize(image_features.float(), dim=-1)
        texts = F.normalize(text_features.float(), dim=-1)
        if texts.ndim == 2:
            return scale * images @ texts.T
        return scale * torch.einsum("bd,bcd->bc", images, texts)


def distillation_kl(teacher_logits: Float[Tensor, "B C"], student_logits: Float[Tensor, "B C"]) -> Float[Tensor, ""]:
    """Returns the mean over images of KL(teacher || student), without a gradient for the teacher (TRIP, Eq. 11).

    Example:
        >>> logits = torch.tensor([[1.0, 2.0]])
        >>> distillation_kl(logits, logits).item()
        0.0
    """
    teacher = F.log_softmax(teacher_logits.detach().float(), dim=-1)
    student = F.log_softmax(student_logits.float(), dim=-1)
    return (teacher.exp() * (teacher - student)).sum() / len(student)  # F.kl_div cannot be batched over clients
