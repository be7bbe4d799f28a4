"""Losses, logits and loops that several methods share, as functions on tensors. Imports nothing of ours but utils."""

from fedvlp.ops.losses import cosine_logits, distillation_kl

__all__ = ["cosine_logits", "distillation_kl"]
