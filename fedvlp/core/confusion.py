"""Which class images were taken for, counted."""

from __future__ import annotations

from collections import Counter

import torch
from jaxtyping import Int
from torch import Tensor

Confusion = Counter[tuple[int, int]]
"""How many images there are of each true and predicted class; pairs without an image are left out."""


def count_confusion(labels: Int[Tensor, "N"], predicted: Int[Tensor, "N"]) -> Confusion:
    """Returns how many images there are of each true and predicted class.

    >>> dict(count_confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 0])))
    {(0, 0): 1, (1, 0): 2}
    """
    if not len(labels):
        return Counter()
    width = int(predicted.max()) + 1
    # One number for each pair, since that is much faster to count than rows of two.
    pairs, counts = torch.unique(labels * width + predicted, return_counts=True)
    return Counter({divmod(pair, width): count for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)})
