"""Accuracy of a state on every evaluation split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from lightning import Fabric
from torchmetrics.classification import MulticlassAccuracy

from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import EvaluationSplit, MeasuredData
from fedvlp.core.state import State
from fedvlp.utils.errors import UserError


@torch.no_grad()
def evaluate(
    module: FederatedModule,
    data: MeasuredData,
    fabric: Fabric,
    deployed: State,
    personal: Mapping[int, State],
) -> dict[str, float]:
    """Returns the accuracy, in percent, of every split and the mean over domains of each role.

    Methods that keep tensors on the clients are tested on a domain with those of each client that trains on it, in
    turn, and the mean of these accuracies is returned. A held-out domain is nobody's, so there each client counts.

    Returns:
        ``validation/<domain>``, ``test/<domain>`` and ``held_out/<domain>``, with the means ``validation``, ``test``
        and ``held_out`` of those that exist.
    """
    module.eval()
    scores: dict[str, list[float]] = {}
    accuracy = {}
    for split in data.evaluation_splits():
        states = _states(module, data, split, deployed, personal)
        values = [split_accuracy(module, fabric, split, state, len(data.class_names)) for state in states]
        accuracy[split.name] = sum(values) / len(values)
        scores.setdefault(split.role, []).append(accuracy[split.name])
    return accuracy | {role: sum(values) / len(values) for role, values in scores.items()}


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
    data: MeasuredData,
    split: EvaluationSplit,
    deployed: State,
    personal: Mapping[int, State],
) -> Iterator[State]:
    """Yields the states with which a split is tested, one in memory at a time."""
    if not module.personal:
        yield deployed
        return
    for client in split.clients or data.clients:
        yield deployed | personal.get(client.id, {})


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
