"""Accuracy of a state on every evaluation split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning import Fabric
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.core.predictions import Predictions, percent, single_state
from fedvlp.core.protocols import EvaluationSplit, MeasuredData
from fedvlp.core.state import State
from fedvlp.training.image_predictions import has_accuracy, measured_splits, together
from fedvlp.training.protocol_scores import protocol_scores
from fedvlp.utils.errors import UserError


@torch.no_grad()
def evaluate(
    module: FederatedModule,
    data: MeasuredData,
    fabric: Fabric,
    deployed: State,
    personal: Mapping[int, State],
    initial_personal: State | None = None,
    predictions: dict[str, Predictions] | None = None,
) -> dict[str, float]:
    """Returns the accuracy, in percent, of every split, the mean over domains of each role, and what protocols report.

    Methods that keep tensors on the clients are tested on a domain with those of each client that trains on it, in
    turn, and the mean of these accuracies is returned. A held-out domain is nobody's; the method's ``unseen`` says what
    is done there. A client that has never trained is tested with what it would begin with, ``initial_personal``.
    Splits of other classes than those that train are measured by the method for those classes.

    Args:
        module: the method.
        data: the splits.
        fabric: where the method is.
        deployed: what all clients share.
        personal: what each client keeps, by its id.
        initial_personal: what a client keeps that has never trained.
        predictions: receives the predicted classes by split, also of images out of distribution if the data have any.

    Returns:
        ``validation/<domain>``, ``test/<domain>``, ``held_out/<domain>`` and the like, with the means ``validation``,
        ``test`` and ``held_out`` of those that exist, and what :func:`.protocol_scores` computes of them.
    """
    module.eval()
    accuracy: dict[str, float] = {}
    for split in measured_splits(data, predictions is not None):
        judge = _judge(module, split)
        if _is_of_all(module, split):
            tallies = [_shared_tally(judge, fabric, split, deployed)]
        else:
            own = (personal.get(client.id, initial_personal or {}) for client in split.clients or data.clients)
            states = (deployed | kept for kept in own)  # one in memory at a time
            if not split.clients and module.unseen == "mean":
                tallies = [_mean_prediction_tally(judge, fabric, split, states)]
            else:
                tallies = [split_tally(judge, fabric, split, state) for state in states]
        if predictions is not None:
            predictions[split.name] = together(module, split, data.clients, [each.predictions for each in tallies])
        if not has_accuracy(split):
            continue
        accuracy[split.name] = sum(tally.percent for tally in tallies) / len(tallies)
    return with_means(accuracy)


def _judge(module: FederatedModule, split: EvaluationSplit) -> FederatedModule:
    """Returns what classifies the images of a split: the method, or the method for the split's own classes."""
    class_names = split.class_names
    return module.for_classes(class_names) if class_names else module


def _is_of_all(module: FederatedModule, split: EvaluationSplit) -> bool:
    """Whether a split is measured by what all clients share alone."""
    return not module.personal or split.role == "global" or (not split.clients and module.unseen == "shared")


@torch.no_grad()
def validation_loss(module: FederatedModule, data: MeasuredData, fabric: Fabric, shared: State) -> float:
    """Returns the mean over source domains of the mean cross-entropy of their validation images.

    Raises:
        UserError: if no image validates.
    """
    losses: list[float] = []
    module.eval()
    module.load_state(shared)
    for split in data.evaluation_splits():
        if split.role == "validation":
            logits, labels = zip(*_logits(module, fabric, split), strict=True)
            losses.append(F.cross_entropy(torch.cat(logits), torch.cat(labels)).item())
    if not losses:
        raise UserError(f"{type(module).__name__} looks at the source validation loss, but no image validates.")
    return sum(losses) / len(losses)


@dataclass(frozen=True)
class Tally:
    """How many images of a split were classified, and how many of them rightly.

    Attributes:
        correct: as many as were.
        count: all of them, at least 1.
        predictions: the predicted class of each image; None where that is not known.
    """

    correct: int
    count: int
    predictions: Predictions | None = None

    @property
    def percent(self) -> float:
        """The accuracy in percent."""
        return percent(self.correct, self.count)


def with_means(accuracy: Mapping[str, float]) -> dict[str, float]:
    """Returns accuracies by ``<role>/<domain>``, with the mean over domains of each role and what protocols report.

    >>> with_means({"validation/ink": 50.0, "validation/photo": 70.0})
    {'validation/ink': 50.0, 'validation/photo': 70.0, 'validation': 60.0}
    """
    by_role: dict[str, list[float]] = {}
    for name, value in accuracy.items():
        by_role.setdefault(name.split("/")[0], []).append(value)
    means = {role: sum(values) / len(values) for role, values in by_role.items()}
    return {**accuracy, **means, **protocol_scores(by_role)}


def split_accuracy(module: FederatedModule, fabric: Fabric, split: EvaluationSplit, state: State) -> float:
    """Returns the accuracy on one split of what all clients share, in percent."""
    return _shared_tally(module, fabric, split, state).percent


def _shared_tally(module: FederatedModule, fabric: Fabric, split: EvaluationSplit, state: State) -> Tally:
    with module.shared_part_alone():
        return split_tally(module, fabric, split, state)


@torch.no_grad()
def split_tally(module: FederatedModule, fabric: Fabric, split: EvaluationSplit, state: State) -> Tally:
    """Returns on how many images of a split a state is right; the module is in evaluation mode."""
    module.load_state(state)
    predicted: list[Tensor] = []
    confidence: list[Tensor] = []
    labels: list[Tensor] = []
    for logits, of_batch in _logits(module, fabric, split):
        predicted.append(logits.argmax(-1))
        confidence.append(logits.softmax(-1).amax(-1))
        labels.append(of_batch)
    return _tally(torch.cat(predicted), torch.cat(confidence), torch.cat(labels))


def _tally(predicted: Int[Tensor, "N"], confidence: Float[Tensor, "N"], labels: Int[Tensor, "N"]) -> Tally:
    correct = int((predicted == labels).sum())
    return Tally(correct, len(labels), single_state(labels, predicted, confidence))


@torch.no_grad()
def accuracy_now(module: FederatedModule, fabric: Fabric, splits: Sequence[EvaluationSplit]) -> float:
    """Returns the share, in [0, 1], of the images of some splits on which what the running phase trains is right.

    The method is afterwards in the mode, training or evaluation, in which it was.
    """
    was_training = module.training
    module.eval()
    correct = 0
    count = 0
    for split in splits:
        for inputs, labels in split.loader:
            moved: Any = fabric.to_device(inputs)
            with fabric.autocast():
                logits = module.local_logits(moved)
            correct += int((logits.argmax(-1) == fabric.to_device(labels)).sum())
            count += len(labels)
    module.train(was_training)
    return correct / max(1, count)


@torch.no_grad()
def _mean_prediction_tally(
    module: FederatedModule, fabric: Fabric, split: EvaluationSplit, states: Iterable[State]
) -> Tally:
    """Returns on how many images of a split the mean over states of the classes' probabilities is right."""
    predicted: list[Tensor] = []  # [images, C] of each state
    for state in states:
        module.load_state(state)
        predicted.append(torch.cat([logits.softmax(-1) for logits, _ in _logits(module, fabric, split)]))
    labels = torch.cat([labels for _, labels in split.loader])
    mean = torch.stack(predicted).mean(0)
    return _tally(mean.argmax(-1).cpu(), mean.amax(-1).cpu(), labels.cpu())


def _logits(module: FederatedModule, fabric: Fabric, split: EvaluationSplit) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the logits and labels of each batch of a split."""
    for inputs, labels in split.loader:
        with fabric.autocast():
            logits = module(fabric.to_device(inputs))
        yield logits.float(), fabric.to_device(labels)


def of_roles(scores: Mapping[str, float], roles: Sequence[str]) -> dict[str, float]:
    """Returns the scores of splits of some roles, their means included.

    Raises:
        UserError: if there is none.
    """
    chosen = {name: value for name, value in scores.items() if name.split("/")[0] in roles}
    if not chosen:
        raise UserError(
            "No domain is held out and none has a test split, so there is nothing to test. "
            "Set --data.held_out or --data.test_fraction, or validate."
        )
    return chosen
