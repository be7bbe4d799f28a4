"""Accuracy of a state on every evaluation split, and the summaries that protocols report."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from lightning import Fabric
from torch import Tensor

from fedvlp.core.metrics import single_state
from fedvlp.core.module import FederatedModule
from fedvlp.core.predictions import Predictions, f1_thresholds, stack
from fedvlp.core.protocols import EvaluationSplit, FederatedData, HasOutOfDistribution, Loader, MeasuredData
from fedvlp.core.roles import BASELINES, OUT_OF_DISTRIBUTION, ROLES
from fedvlp.core.several_labels import classification_loss, label_logits, probabilities
from fedvlp.core.state import State
from fedvlp.utils.errors import UserError

Score = Callable[[Tensor, Tensor], Tensor]  # of logits and labels


def baselines(
    module: FederatedModule, data: FederatedData, fabric: Fabric, names: Sequence[str]
) -> dict[str, FederatedModule]:
    """Build the baselines among ``names``, by their title in tables. Class means need cached features."""
    zero_shot = module.baseline()
    built: dict[str, FederatedModule | None] = {}
    if zero_shot is not None:
        fabric.to_device(zero_shot)
        # A method that is its own baseline always keeps this row.
        built["zero_shot"] = zero_shot if "zero_shot" in names or zero_shot is module else None
        if "class_means" in names and module.precomputes and not getattr(data, "several_labels", False):
            # With a fixed seed, because rounding of sums depends on the order of the images.
            loaders = (data.train_dataloader(client, seed=0, once=True) for client in data.clients)
            built["class_means"] = zero_shot.class_means_baseline(chain.from_iterable(loaders))
    return {BASELINES[name]: baseline for name, baseline in built.items() if baseline is not None}


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
    """Compute the accuracy of every split in percent, and the summaries of :func:`add_means`.

    A method with personal tensors is evaluated on a domain with the tensors of each client of this domain, and the
    accuracies are averaged. Held-out domains have no client, so the method's ``held_out_evaluation`` applies. Splits of
    other classes are evaluated by a copy of the method for these classes.

    ``personal`` holds personal tensors by client id; ``initial_personal`` is for clients that have never trained.
    ``predictions`` receives the predicted classes by split, including images out of distribution. If images have
    several labels, validation splits choose the method's ``label_thresholds``.
    """
    module.eval()
    splits = [split for split in data.evaluation_splits() if not (split.class_names and module.has_fixed_classes)]
    outside: Sequence[EvaluationSplit] = ()
    if predictions is not None and isinstance(data, HasOutOfDistribution):
        outside = data.out_of_distribution_splits()
        splits += outside
    # Without shared tensors there is no trained global model.
    if module.personal and not module.shared_state():
        splits = [split for split in splits if split.role != "global"]
    accuracy: dict[str, float] = {}
    for split in splits:
        owners = split.clients or data.clients
        personal_states = (personal.get(client.id, initial_personal or {}) for client in owners)
        by_state = _predict_states(module, fabric, split, deployed, personal_states, bool(outside))
        # Rows of predictions belong to clients if each client's state was evaluated separately.
        is_by_client = bool(split.clients) or (bool(module.personal) and module.held_out_evaluation == "each")
        names = [client.name for client in owners] if is_by_client else []
        split_predictions = replace(stack(by_state, names, split.class_names), groups=split.groups)
        if predictions is not None:
            predictions[split.name] = split_predictions
        if split.name.split("/")[0] != OUT_OF_DISTRIBUTION:
            accuracy[split.name] = split_predictions.accuracy
    validation = [each for name, each in (predictions or {}).items() if name.split("/")[0] == "validation"]
    if module.has_several_labels and validation:
        module.label_thresholds = f1_thresholds(validation)
    return add_means(accuracy)


def _predict_states(
    module: FederatedModule,
    fabric: Fabric,
    split: EvaluationSplit,
    deployed: State,
    personal: Iterable[State],
    with_scores: bool,
) -> list[Predictions]:
    class_names = split.class_names
    classifier = module.for_classes(class_names) if class_names else module
    is_held_out = not split.clients
    if not module.personal or split.role == "global" or (is_held_out and module.held_out_evaluation == "shared"):
        return [predict_shared(classifier, fabric, split, deployed, with_scores)]
    # A generator, because the states of all clients may not fit into memory together.
    states = (deployed | client_state for client_state in personal)
    if is_held_out and module.held_out_evaluation == "mean":
        return [_mean_predictions(classifier, fabric, split, states)]
    return [predict_split(classifier, fabric, split, state, with_scores) for state in states]


def add_means(accuracy: Mapping[str, float]) -> dict[str, float]:
    """Add the mean over domains of each role, and the summaries of the protocol, to accuracies by ``<role>/<domain>``.

    Harmonic means combine base and new classes, as in CoCoOp, and the clients' own classes if these are evaluated, as
    in FedTPG. A spread is the population standard deviation over clients.

    >>> add_means({"validation/ink": 50.0, "validation/photo": 70.0})
    {'validation/ink': 50.0, 'validation/photo': 70.0, 'validation': 60.0}
    >>> add_means({"test/ink": 60.0, "test_new/ink": 20.0})["test_harmonic"]
    30.0
    """
    by_role: dict[str, list[float]] = {}
    for name, value in accuracy.items():
        by_role.setdefault(name.split("/")[0], []).append(value)
    scores = {role: sum(values) / len(values) for role, values in by_role.items()}
    # A protocol with new classes always evaluates them; the other roles depend on its options.
    for name, harmonic in ROLES.items():
        if any(role in by_role for role in harmonic.harmonic_of[-1:]):
            scores[name] = statistics.harmonic_mean([scores[role] for role in harmonic.harmonic_of if role in by_role])
    for role, values in by_role.items():
        if f"{role}_worst" in ROLES:
            scores[f"{role}_worst"] = min(values)
            scores[f"{role}_spread"] = statistics.pstdev(values)
    return {**accuracy, **scores}


def filter_roles(scores: Mapping[str, float], roles: Sequence[str]) -> dict[str, float]:
    """Keep the scores of some roles, including their means; raise UserError if there are none."""
    chosen = {name: value for name, value in scores.items() if name.split("/")[0] in roles}
    if not chosen:
        raise UserError(
            "There is nothing to test: no domain is held out, and no domain has a test split. "
            "Set --data.held_out or --data.test_fraction, or use validate."
        )
    return chosen


def predict_shared(
    module: FederatedModule, fabric: Fabric, split: EvaluationSplit, state: State, with_scores: bool = False
) -> Predictions:
    """Predict a split with the shared tensors only; see :func:`predict_split`."""
    with module.shared_part_only():
        return predict_split(module, fabric, split, state, with_scores)


@torch.no_grad()
def predict_split(
    module: FederatedModule, fabric: Fabric, split: EvaluationSplit, state: State, with_scores: bool = False
) -> Predictions:
    """Predict a split with a state. The module must be in evaluation mode.

    ``with_scores`` adds scores that should be lower for images of no class: ``energy`` (Liu et al., NeurIPS 2020),
    ``mcm`` (Ming et al., NeurIPS 2022) and, with ``region_logits``, ``gl_mcm`` (Miyai et al., IJCV 2025).
    """
    module.load_state(state)
    batches: Iterator[Any] = (fabric.to_device(inputs) for inputs, _ in split.loader)
    module.see_test_images(batches)
    scale = getattr(module.clip, "logit_scale", 1.0) if with_scores else 1.0
    # Collected on the device, because copying each batch would wait for its computation.
    predicted: list[Tensor] = []
    confidence: list[Tensor] = []
    labels: list[Tensor] = []
    scores: dict[str, list[Tensor]] = defaultdict(list)
    for logits, batch_labels in batch_logits(module, fabric, split.loader):
        if batch_labels.ndim == 2:
            confidence.append((label_logits(logits) / module.calibration_temperature).sigmoid())
            predicted.append(confidence[-1] >= 0.5)
        else:
            predicted.append(logits.argmax(-1))
            confidence.append((logits / module.calibration_temperature).softmax(-1).amax(-1))
            if with_scores:
                scores["energy"].append(logits.logsumexp(-1))
                scores["mcm"].append((logits / scale).softmax(-1).amax(-1))
        labels.append(batch_labels)
    if with_scores and module.region_logits is not None:
        batches = batch_logits(module.region_logits, fabric, split.loader)
        for mcm, (regions, _) in zip(scores["mcm"], batches, strict=True):
            scores["gl_mcm"].append(mcm + (regions / scale).softmax(-1).amax((-2, -1)))
    one_state = single_state(torch.cat(labels), torch.cat(predicted), torch.cat(confidence))
    return replace(one_state, scores={name: torch.cat(values).cpu().numpy()[None] for name, values in scores.items()})


def _mean_predictions(
    module: FederatedModule, fabric: Fabric, split: EvaluationSplit, states: Iterable[State]
) -> Predictions:
    by_state: list[Tensor] = []  # probabilities of each state [images, C]
    names = module.hparams.get("class_names", ())
    for state in states:
        module.load_state(state)
        batches = batch_logits(module, fabric, split.loader)
        by_state.append(torch.cat([probabilities(logits, names) for logits, _ in batches]))
    # Probabilities are averaged rather than logits, because each client's logits may have a different scale.
    mean = torch.stack(by_state).mean(0)
    labels = torch.cat([labels for _, labels in split.loader])
    if labels.ndim == 2:
        return single_state(labels, mean >= 0.5, mean)
    return single_state(labels, mean.argmax(-1), mean.amax(-1))


@torch.no_grad()
def validation_loss(module: FederatedModule, data: MeasuredData, fabric: Fabric, shared: State) -> float:
    """Average the loss of validation images per source domain, then over domains; UserError without images."""
    losses: list[float] = []
    module.eval()
    module.load_state(shared)
    for split in data.evaluation_splits():
        if split.role == "validation":
            # Concatenated, because the last batch may be smaller.
            logits, labels = zip(*batch_logits(module, fabric, split.loader), strict=True)
            losses.append(classification_loss(torch.cat(logits), torch.cat(labels)).item())
    if not losses:
        raise UserError(
            f"{type(module).__name__} needs the source validation loss, but there are no validation images. "
            "Add images, so that a class of a source domain has two or more."
        )
    return sum(losses) / len(losses)


@torch.no_grad()
def current_mean(module: FederatedModule, fabric: Fabric, loaders: Iterable[Loader], score: Score) -> float:
    """Average a score over images with the current client's tensors in the current phase; 0 without images."""
    was_training = module.training
    module.eval()
    scores = [score(*batch) for loader in loaders for batch in batch_logits(module.local_logits, fabric, loader)]
    module.train(was_training)
    return torch.cat(scores).cpu().double().mean().item() if scores else 0.0


def batch_logits(compute: Callable[[Any], Tensor], fabric: Fabric, loader: Loader) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits [B, C] in float32 and the labels of each batch."""
    for inputs, labels in loader:
        with fabric.autocast():
            logits = compute(fabric.to_device(inputs))
        # Decisions and losses use float32 for any precision of the towers.
        yield logits.float(), fabric.to_device(labels)
