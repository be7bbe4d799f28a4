"""The predicted class of each image, with its confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


def percent(correct: int, count: int) -> float:
    """Returns the share of images that are right, in percent.

    >>> percent(1, 4)
    25.0
    """
    return 100 * torch.tensor(correct).div(count).item()  # in float32, as logits are


@dataclass(frozen=True)
class Predictions:
    """The predicted classes of a split's images, by one state of a method or by those of several clients.

    Attributes:
        labels: true class of each image, in the order of the split, int32; -1 of images that are of no class.
        predicted: class with the highest probability, for each of K states and each image, int32.
        confidence: that probability, the largest of the softmax, in (0, 1], float32; 0 where logits are no numbers.
        clients: names of the clients whose states these are. For a single state, the clients that train on the images'
            domain; empty if it is held out.
        class_names: the classes, in the order of the labels, if they are others than those that train.
    """

    labels: Int[Tensor, "N"]
    predicted: Int[Tensor, "K N"]
    confidence: Float[Tensor, "K N"]
    clients: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """The share of images that are classified rightly, in percent; the mean over states."""
        # Each state counts the same, however many images its client has.
        rights = (self.predicted == self.labels).sum(-1).tolist()
        return sum(percent(correct, len(self.labels)) for correct in rights) / len(rights)

    def accuracy_of(self, client: str) -> float:
        """Returns the same of a client's state, or of the only one."""
        row = self.of_client(client)
        return percent(int((self.predicted[row] == self.labels).sum()), len(self.labels))

    def of_client(self, client: str) -> int:
        """Returns which of the K states is a client's."""
        return self.clients.index(client) if len(self.predicted) > 1 else 0


def single_state(labels: Int[Tensor, "N"], predicted: Int[Tensor, "N"], confidence: Float[Tensor, "N"]) -> Predictions:
    """Returns the predictions of a single state, on the CPU."""
    finite = confidence.cpu().float().nan_to_num(0.0)
    return Predictions(labels.cpu().int(), predicted.cpu().int()[None], finite[None])


def stack(of_states: Sequence[Predictions], clients: Sequence[str], class_names: Sequence[str] = ()) -> Predictions:
    """Returns the predictions of several states for the same images.

    Args:
        of_states: those of each, at least one.
        clients: as the attribute of ``Predictions``.
        class_names: as the attribute.
    """
    predicted = torch.cat([each.predicted for each in of_states])
    confidence = torch.cat([each.confidence for each in of_states])
    return Predictions(of_states[0].labels, predicted, confidence, tuple(clients), tuple(class_names))
