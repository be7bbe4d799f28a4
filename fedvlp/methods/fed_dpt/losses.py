"""Losses that tie tokens of an image tower to domains (ADAPT)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fedvlp.ops.losses import cosine_logits


def pairs_correspondence(
    tokens: Float[Tensor, "B domains d"],
    texts: Float[Tensor, "domains C d"],
    labels: Int[Tensor, "B"],
    scale: float,
) -> Float[Tensor, ""]:
    """Returns -(1/n) sum_j log softmax_k(cos(h_j, f_T^k(y)) / tau)[j], the mean over images.

    Args:
        tokens: h_j, the joint feature of the image token of domain j, of any length.
        texts: f_T^k(c), the text feature of class c in domain k, of any length.
        labels: y.
        scale: 1 / tau.

    Example:
        >>> texts = torch.eye(2)[:, None]  # two domains, one class
        >>> loss = pairs_correspondence(torch.eye(2)[None], texts, torch.tensor([0]), scale=1.0)
        >>> round(loss.item(), 4)  # log(1 + 1/e)
        0.3133
    """
    batch, count, width = tokens.shape
    own_class = texts[:, labels].transpose(0, 1)  # [B, domains, d]
    repeated = own_class[:, None].expand(batch, count, count, width).flatten(0, 1)  # [B * domains, domains, d]
    logits = cosine_logits(tokens.flatten(0, 1), repeated, scale)
    return F.cross_entropy(logits, torch.arange(count, device=tokens.device).repeat(batch))
