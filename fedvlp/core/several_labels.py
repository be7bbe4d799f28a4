"""Several labels per image: a method compares each label with one negative class.

A method gets the names of L labels and, last, the marked name of the negative class, and computes L + 1 logits. A
label's logit is its own minus that of the negative class, and its probability is the sigmoid. Targets [B, L] are
1, 0, or NaN if a label is unknown.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedvlp.core.protocols import Targets

NEGATIVE = "¬"
"""First character of the negative class's name, which prompts leave out."""
SEPARATOR = "|"
"""Character between the labels of a set."""


def with_negative_class(labels: Sequence[str], name: str) -> list[str]:
    """Name the classes of a method for several labels per image.

    >>> with_negative_class(["cat", "dog"], "image")
    ['cat', 'dog', '¬image']
    """
    return [*labels, NEGATIVE + name]


def has_negative_class(class_names: Sequence[str]) -> bool:
    """Whether the last class is the negative class, so that images have several labels."""
    return bool(class_names) and class_names[-1].startswith(NEGATIVE)


def label_names(class_names: Sequence[str]) -> list[str]:
    """List the class names without the negative class.

    >>> label_names(["cat", "dog", "¬image"]), label_names(["cat", "dog"])
    (['cat', 'dog'], ['cat', 'dog'])
    """
    return list(class_names[:-1] if has_negative_class(class_names) else class_names)


def label_logits(logits: Float[Tensor, "B _"]) -> Float[Tensor, "B L"]:
    """Compute the labels' logits from the logits of labels and negative class, in float32.

    >>> label_logits(torch.tensor([[3.0, 1.0, 2.0]]))
    tensor([[ 1., -1.]])
    """
    return logits[:, :-1].float() - logits[:, -1:].float()


def label_pairs(logits: Float[Tensor, "B C"]) -> Float[Tensor, "B L 2"]:
    """Pair each label's logit with the negative class's, so that a softmax gives the label's probability first.

    >>> label_pairs(torch.tensor([[3.0, 1.0, 2.0]])).tolist()
    [[[3.0, 2.0], [1.0, 2.0]]]
    """
    labels = logits[:, :-1]
    return torch.stack([labels, logits[:, -1:].expand_as(labels)], dim=-1)


def image_losses(logits: Float[Tensor, "B C"], targets: Targets) -> Float[Tensor, "B"]:
    """Compute each image's cross-entropy for classes [B], or binary cross-entropy for targets [B, L] of labels.

    The binary cross-entropy is the mean over an image's known labels, or 0 without any.

    >>> targets = torch.tensor([[1.0, torch.nan]])
    >>> image_losses(torch.zeros(1, 3), targets)  # log 2, of one known label
    tensor([0.6931])
    """
    if targets.ndim == 1:
        return F.cross_entropy(logits, targets, reduction="none")
    losses = F.binary_cross_entropy_with_logits(label_logits(logits), targets.nan_to_num(), reduction="none")
    is_known = ~targets.isnan()
    return (losses * is_known).sum(-1) / is_known.sum(-1).clamp(min=1)


def classification_loss(logits: Float[Tensor, "B C"], targets: Targets) -> Float[Tensor, ""]:
    """Average :func:`image_losses` over images."""
    return F.cross_entropy(logits, targets) if targets.ndim == 1 else image_losses(logits, targets).mean()


def is_correct(logits: Float[Tensor, "B C"], targets: Targets) -> Float[Tensor, "B"]:
    """Compute whether each image's class is right, 0 or 1, or the share of known labels predicted correctly, in [0, 1].

    >>> is_correct(torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([[1.0, 1.0]]))
    tensor([0.5000])
    """
    if targets.ndim == 1:
        return (logits.argmax(-1) == targets).float()
    return torch.where(targets.isnan(), torch.nan, (label_logits(logits) > 0) == targets).nanmean(-1).nan_to_num()


def probabilities(logits: Float[Tensor, "B C"], class_names: Sequence[str]) -> Tensor:
    """Compute the classes' probabilities [B, C], or the labels' probabilities [B, L] if there is a negative class."""
    return label_logits(logits).sigmoid() if has_negative_class(class_names) else logits.softmax(-1)
