"""Which images are measured, and what they were taken for by all states that they were measured with."""

from __future__ import annotations

from collections.abc import Sequence

from fedvlp.core.module import FederatedModule
from fedvlp.core.predictions import Predictions, stack
from fedvlp.core.protocols import EvaluationSplit, HasOutOfDistribution, MeasuredData
from fedvlp.core.roles import OUT_OF_DISTRIBUTION
from fedvlp.core.state import Client


def measured_splits(data: MeasuredData, with_out_of_distribution: bool) -> list[EvaluationSplit]:
    """Returns the splits of which there is an accuracy, then, if they are wanted and there are any, the others."""
    splits = list(data.evaluation_splits())
    if with_out_of_distribution and isinstance(data, HasOutOfDistribution):
        splits += data.out_of_distribution_splits()
    return splits


def has_accuracy(split: EvaluationSplit) -> bool:
    """Whether the images of a split are of the classes."""
    return split.name.split("/")[0] != OUT_OF_DISTRIBUTION


def together(
    module: FederatedModule, split: EvaluationSplit, clients: Sequence[Client], of_states: Sequence[Predictions | None]
) -> Predictions:
    """Returns the predictions of all states that a split was measured with, and whose they are.

    Args:
        module: the method.
        split: the images.
        clients: all clients.
        of_states: those of each state.
    """
    is_of_each = bool(module.personal) and module.unseen == "each"
    owners = split.clients or (clients if is_of_each else ())
    found = [each for each in of_states if each is not None]
    return stack(found, [client.name for client in owners], split.class_names)
