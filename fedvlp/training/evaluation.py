"""Accuracy of a state on every evaluation split, and what protocols report of these accuracies."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from lightning import Fabric
from torch import Tensor

from fedvlp.core.metrics import single_state
from fedvlp.core.module import FederatedModule
from fedvlp.core.predictions import Predictions, stack
from fedvlp.core.protocols import EvaluationSplit, FederatedData, HasOutOfDistribution, MeasuredData
from fedvlp.core.roles import BASELINES, OUT_OF_DISTRIBUTION, ROLES
from fedvlp.core.state import State
from fedvlp.utils.errors import UserError


def baselines(
    module: FederatedModule, data: FederatedData, fabric: Fabric, names: Sequence[str]
) -> dict[str, FederatedModule]:
    """Make the baselines among ``names``, by the titles of their rows; class means are of cached features."""
    zero_shot = module.baseline()
    found: dict[str, FederatedModule | None] = {}
    if zero_shot is not None:
        fabric.to_device(zero_shot)
        # The only row of a method that is its own baseline is never left out.
        found["zero_shot"] = zero_shot if "zero_shot" in names or zero_shot is module else None
        if "class_means" in names and module.precomputes:
            # With a fixed seed, since sums are rounded in the order of the images.
            loaders = (data.train_dataloader(client, seed=0) for client in data.clients)
            found["class_means"] = zero_shot.class_means_baseline(chain.from_iterable(loaders))
    return {BASELINES[name]: each for name, each in found.items() if each is not None}


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
    """Compute the accuracy, in percent, of every split, the mean of each role, and what :func:`with_means` adds.

    A method that keeps tensors on the clients is tested on a domain with the tensors of each client that trains on it;
    the result is the mean. A held-out domain has no client: the method's ``held_out_evaluation`` applies. Splits of
    other classes are measured by the method for those.

    ``personal`` is what each client keeps, by its id, and ``initial_personal`` what one keeps that has never trained.
    ``predictions`` receives the predicted classes by split, also of images out of distribution.
    """
    module.eval()
    splits = [split for split in data.evaluation_splits() if not (split.class_names and module.is_of_own_classes)]
    if predictions is not None and isinstance(data, HasOutOfDistribution):
        splits += data.out_of_distribution_splits()
    # Without a shared tensor there is no global model: its tensors would be the untrained ones.
    if module.personal and not module.shared_state():
        splits = [split for split in splits if split.role != "global"]
    accuracy: dict[str, float] = {}
    for split in splits:
        owners = split.clients or data.clients
        personal_states = (personal.get(client.id, initial_personal or {}) for client in owners)
        by_state = _predictions_of_states(module, fabric, split, deployed, personal_states)
        # A row of predictions is a client's where each client's state was measured by itself.
        is_by_client = bool(split.clients) or (bool(module.personal) and module.held_out_evaluation == "each")
        names = [client.name for client in owners] if is_by_client else []
        measured = stack(by_state, names, split.class_names)
        if predictions is not None:
            predictions[split.name] = measured
        if split.name.split("/")[0] != OUT_OF_DISTRIBUTION:
            accuracy[split.name] = measured.accuracy
    return with_means(accuracy)


def _predictions_of_states(
    module: FederatedModule, fabric: Fabric, split: EvaluationSplit, deployed: State, personal: Iterable[State]
) -> list[Predictions]:
    """The predictions of each state that a split is measured with: one, or those of the clients."""
    class_names = split.class_names
    classifier = module.for_classes(class_names) if class_names else module
    is_held_out = not split.clients
    if not module.personal or split.role == "global" or (is_held_out and module.held_out_evaluation == "shared"):
        return [shared_predictions(classifier, fabric, split, deployed)]
    # A generator: the states of all clients may not fit into memory side by side.
    states = (deployed | kept for kept in personal)
    if is_held_out and module.held_out_evaluation == "mean":
        return [_mean_predictions(classifier, fabric, split, states)]
    return [split_predictions(classifier, fabric, split, state) for state in states]


def with_means(accuracy: Mapping[str, float]) -> dict[str, float]:
    """Add to accuracies by ``<role>/<domain>`` the mean over domains of each role and what protocols report.

    Harmonic means are of base and new classes, as CoCoOp's, and of the clients' own classes where they are measured, as
    FedTPG's. A spread is the population standard deviation over clients.

    >>> with_means({"validation/ink": 50.0, "validation/photo": 70.0})
    {'validation/ink': 50.0, 'validation/photo': 70.0, 'validation': 60.0}
    >>> with_means({"test/ink": 60.0, "test_new/ink": 20.0})["test_harmonic"]
    30.0
    """
    by_role: dict[str, list[float]] = {}
    for name, value in accuracy.items():
        by_role.setdefault(name.split("/")[0], []).append(value)
    scores = {role: sum(values) / len(values) for role, values in by_role.items()}
    # A protocol with new classes always measures them; the other roles depend on its options.
    for name, harmonic in ROLES.items():
        if any(role in by_role for role in harmonic.harmonic_of[-1:]):
            scores[name] = statistics.harmonic_mean([scores[role] for role in harmonic.harmonic_of if role in by_role])
    for role, values in by_role.items():
        if f"{role}_worst" in ROLES:
            scores[f"{role}_worst"] = min(values)
            scores[f"{role}_spread"] = statistics.pstdev(values)
    return {**accuracy, **scores}


def filter_roles(scores: Mapping[str, float], roles: Sequence[str]) -> dict[str, float]:
    """Keep the scores of some roles, their means included; raise UserError if there are none."""
    chosen = {name: value for name, value in scores.items() if name.split("/")[0] in roles}
    if not chosen:
        raise UserError(
            "No domain is held out and none has a test split, so there is nothing to test. "
            "Set --data.held_out or --data.test_fraction, or validate."
        )
    return chosen


def shared_predictions(module: FederatedModule, fabric: Fabric, split: EvaluationSplit, state: State) -> Predictions:
    """Predict one split by what all clients share."""
    with module.shared_part_only():
        return split_predictions(module, fabric, split, state)


@torch.no_grad()
def split_predictions(module: FederatedModule, fabric: Fabric, split: EvaluationSplit, state: State) -> Predictions:
    """Predict a split by a state; the module is in evaluation mode."""
    module.load_state(state)
    # They stay on the device to the end: to copy each batch would wait for it.
    predicted: list[Tensor] = []
    confidence: list[Tensor] = []
    labels: list[Tensor] = []
    for logits, batch_labels in _logits(module, fabric, split):
        predicted.append(logits.argmax(-1))
        confidence.append(logits.softmax(-1).amax(-1))
        labels.append(batch_labels)
    return single_state(torch.cat(labels), torch.cat(predicted), torch.cat(confidence))


def _mean_predictions(
    module: FederatedModule, fabric: Fabric, split: EvaluationSplit, states: Iterable[State]
) -> Predictions:
    probabilities: list[Tensor] = []  # of each state [images, C]
    for state in states:
        module.load_state(state)
        probabilities.append(torch.cat([logits.softmax(-1) for logits, _ in _logits(module, fabric, split)]))
    # Probabilities, and not logits: each client's may have a scale of its own.
    mean = torch.stack(probabilities).mean(0)
    labels = torch.cat([labels for _, labels in split.loader])
    return single_state(labels, mean.argmax(-1), mean.amax(-1))


@torch.no_grad()
def validation_loss(module: FederatedModule, data: MeasuredData, fabric: Fabric, shared: State) -> float:
    """Compute the mean over source domains of the mean cross-entropy of validation images; UserError without any."""
    losses: list[float] = []
    module.eval()
    module.load_state(shared)
    for split in data.evaluation_splits():
        if split.role == "validation":
            # All images of a domain at once, since its last batch may be smaller.
            logits, labels = zip(*_logits(module, fabric, split), strict=True)
            losses.append(F.cross_entropy(torch.cat(logits), torch.cat(labels)).item())
    if not losses:
        raise UserError(f"{type(module).__name__} looks at the source validation loss, but no image validates.")
    return sum(losses) / len(losses)


@torch.no_grad()
def accuracy_now(module: FederatedModule, fabric: Fabric, splits: Sequence[EvaluationSplit]) -> float:
    """Compute the share, in [0, 1], of images that what the running phase trains classifies correctly."""
    was_training = module.training
    module.eval()
    correct = 0
    count = 0
    for split in splits:
        for logits, labels in _logits(module.local_logits, fabric, split):
            correct += int((logits.argmax(-1) == labels).sum())
            count += len(labels)
    module.train(was_training)
    return correct / max(1, count)


def _logits(
    logits_of: Callable[[Any], Tensor], fabric: Fabric, split: EvaluationSplit
) -> Iterator[tuple[Tensor, Tensor]]:
    for inputs, labels in split.loader:
        with fabric.autocast():
            logits = logits_of(fabric.to_device(inputs))
        # Decisions and losses are taken in float32, whatever the towers' precision.
        yield logits.float(), fabric.to_device(labels)
