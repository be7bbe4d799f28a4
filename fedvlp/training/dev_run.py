"""What ``fast_dev_run`` makes of data: one batch of each split."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from fedvlp.core.protocols import Batch, EvaluationSplit, FederatedData, HasOutOfDistribution, Loader

SAYS = (
    "fast_dev_run: 1 round, 1 step of each client, 1 batch of each split; no accuracy means anything, nothing is kept"
)


@dataclass(frozen=True)
class FirstBatch:
    """A loader's first batch.

    Args:
        loader: of all batches.
    """

    loader: Loader

    def __len__(self) -> int:
        """One, or none where there is none."""
        return min(1, len(self.loader))

    def __iter__(self) -> Iterator[Batch]:
        """Goes through the images of the batch."""
        return islice(iter(self.loader), 1)


def with_short_splits(data: FederatedData) -> FederatedData:
    """Returns a copy of a data module that evaluates on one batch of each split; what was read is shared."""

    def short_of(splits: Callable[[], Sequence[EvaluationSplit]]) -> Callable[[], list[EvaluationSplit]]:
        return lambda: [replace(split, loader=FirstBatch(split.loader)) for split in splits()]

    short = copy.copy(data)
    vars(short)["evaluation_splits"] = short_of(data.evaluation_splits)
    if isinstance(data, HasOutOfDistribution):
        vars(short)["out_of_distribution_splits"] = short_of(data.out_of_distribution_splits)
    return short
