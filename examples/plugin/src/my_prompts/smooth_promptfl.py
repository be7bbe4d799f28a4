"""PromptFL trained on smoothed labels.

Symbols: epsilon, the share of a label spread over all classes -> ``smoothing``; p(c | x) PromptFL's probabilities.
    loss = - sum_c ((1 - epsilon) [c = y] + epsilon / C) log p(c | x)    :meth:`SmoothPromptFL.training_step`
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedvlp import PromptFL
from fedvlp.utils.ranges import FractionBelowOne


class SmoothPromptFL(PromptFL):
    """One text prompt, shared by all clients and trained on smoothed labels.

    Args:
        smoothing: Share epsilon of a label that is spread over all classes.
        **options: Options of PromptFL.
    """

    supports_several_labels = False

    def __init__(self, smoothing: FractionBelowOne = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.smoothing = smoothing

    def training_step(self, batch: Any, batch_idx: int) -> Float[Tensor, ""]:
        """Compute the cross-entropy of a batch with smoothed labels."""
        inputs, labels = batch
        loss = F.cross_entropy(self(inputs), labels, label_smoothing=self.smoothing)
        self.log("loss", loss)
        return loss
