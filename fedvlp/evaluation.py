"""Accuracy of a state on every evaluation split."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from lightning import Fabric
from torchmetrics.classification import MulticlassAccuracy

from fedvlp.module import FederatedModule
from fedvlp.protocols import EvaluationSplit, FederatedData
from fedvlp.state import State


@torch.no_grad()
def evaluate(
    module: FederatedModule,
    data: FederatedData,
    fabric: Fabric,
    deployed: State,
    personal: Mapping[int, State],
) -> dict[str, float]:
    """Returns the accuracy, in percent, of every split and the mean over domains of each role.

    A client's validation split is tested with what that client keeps. A held-out domain is nobody's: methods that keep
    tensors on the clients are tested there with each client's in turn, and the mean of these accuracies is returned.

    Returns:
        ``validation/<domain>`` and ``held_out/<domain>``, with their means ``validation`` and ``held_out``.
    """
    module.eval()
    scores: dict[str, list[float]] = {"validation": [], "held_out": []}
    accuracy = {}
    for split in data.evaluation_splits():
        states = _states(module, data, split, deployed, personal)
        values = [split_accuracy(module, fabric, split, state, len(data.class_names)) for state in states]
        scores[split.role].append(sum(values) / len(values))
        accuracy[split.name] = scores[split.role][-1]
    return accuracy | {role: sum(values) / len(values) for role, values in scores.items() if values}


def split_accuracy(
    module: FederatedModule, fabric: Fabric, split: EvaluationSplit, state: State, num_classes: int
) -> float:
    """Returns the accuracy of one state on one split, in percent."""
    module.load_state(state)
    metric = MulticlassAccuracy(num_classes, average="micro", validate_args=False, sync_on_compute=False).to(
        fabric.device
    )
    for inputs, labels in split.loader:
        with fabric.autocast():
            logits = module(fabric.to_device(inputs))
        metric.update(logits.float(), fabric.to_device(labels))
    return 100 * metric.compute().item()


def _states(
    module: FederatedModule,
    data: FederatedData,
    split: EvaluationSplit,
    deployed: State,
    personal: Mapping[int, State],
) -> list[State]:
    """Returns the states with which a split is tested."""
    if not module.personal:
        return [deployed]
    owners = [split.client] if split.client else data.clients
    return [deployed | dict(personal.get(owner.id, {})) for owner in owners]
