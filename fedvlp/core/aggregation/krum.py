"""Krum and Multi-Krum: the uploads that lie nearest to others (Blanchard et al., NeurIPS 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedvlp.core.aggregation.base import AggregationRule, like, stacked
from fedvlp.core.state import State
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class MultiKrum(AggregationRule):
    """Mean of the m uploads whose nearest others are nearest, each counted once (Blanchard et al. 2017, Section 4).

    An upload's score is the sum of its squared distances to the n - f - 2 nearest others, over all tensors that are
    combined together. Of equal scores the client with the smaller id is taken.

    Args:
        byzantine: The number f of hostile clients that it withstands, at least 0; 2 f + 3 clients are needed.
        selected: The number m of uploads that are averaged, at least 1; m + f clients are needed.

    >>> states = [{"p": torch.tensor([value])} for value in (1.0, 900.0, 2.0, 4.0, 2.5)]
    >>> MultiKrum(byzantine=1, selected=2).combine(states, [1] * 5, {})
    {'p': tensor([2.2500])}
    """

    byzantine: int
    selected: int

    def __post_init__(self) -> None:
        """Refuses numbers of clients that are none."""
        if self.byzantine < 0 or self.selected < 1:
            raise UserError(
                "MultiKrum needs byzantine of at least 0 and selected of at least 1; "
                f"got {self.byzantine} and {self.selected}."
            )

    @property
    def min_clients(self) -> int:
        """2 f + 3, or m + f if that is more."""
        return max(2 * self.byzantine + 3, self.selected + self.byzantine)

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Returns the mean of the selected uploads."""
        chosen = _nearest_to_others(stacked(states), self.byzantine)[: self.selected]
        kept = stacked([states[index] for index in sorted(chosen)])
        return like({name: values.mean(dim=0) for name, values in kept.items()}, states[0])


@dataclass(frozen=True)
class Krum(AggregationRule):
    """The one upload whose nearest others are nearest (Blanchard et al. 2017, Section 4); weights do not count.

    Args:
        byzantine: The number f of hostile clients that it withstands, at least 0; 2 f + 3 clients are needed.

    >>> states = [{"p": torch.tensor([value])} for value in (1.0, 900.0, 2.0, 4.0, 2.5)]
    >>> Krum(byzantine=1).combine(states, [1] * 5, {})
    {'p': tensor([2.])}
    """

    byzantine: int

    def __post_init__(self) -> None:
        """Refuses a negative number of clients."""
        if self.byzantine < 0:
            raise UserError(f"Krum needs byzantine of at least 0; got {self.byzantine}.")

    @property
    def min_clients(self) -> int:
        """2 f + 3."""
        return 2 * self.byzantine + 3

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Returns the selected upload."""
        return dict(states[_nearest_to_others(stacked(states), self.byzantine)[0]])


def _nearest_to_others(uploads: dict[str, Tensor], byzantine: int) -> list[int]:
    """Returns the positions of the clients, the smallest score first, of equal ones the first client."""
    distances = torch.stack([_squared_distances(values.flatten(1).double()) for values in uploads.values()]).sum(dim=0)
    count = len(distances)
    # A client is not its own neighbour.
    distances.fill_diagonal_(torch.inf)
    nearest = distances.sort(dim=1).values[:, : count - byzantine - 2]
    order: list[int] = nearest.sum(dim=1).argsort(stable=True).tolist()
    return order


def _squared_distances(values: Float[Tensor, "K numbers"]) -> Float[Tensor, "K K"]:
    """Returns the squared distance of each client to each, of values in float64: far uploads' squares are large."""
    # Differences, and not |a|^2 + |b|^2 - 2 a b, which cancels where uploads are near each other.
    return torch.stack([(values - own).square().sum(dim=1) for own in values])
