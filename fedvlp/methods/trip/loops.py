"""Loops on tensors that `torch.export` keeps as one operator, where it would unroll those of Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Values = tuple[Tensor, ...]


def repeat_while(goes_on: Callable[..., Tensor], step: Callable[..., Values], values: Values) -> Values:
    """Returns what values have become when a condition on them no longer holds.

    Args:
        goes_on: takes the values; a truth value without axes.
        step: takes the values and returns the next, of the same shapes and types, none of which is a given one.
        values: those to begin with.

    Example:
        >>> (power,) = repeat_while(lambda n: n < 100, lambda n: (2 * n,), (torch.tensor(1),))
        >>> power.item()
        128
    """
    if torch.compiler.is_exporting():
        while_loop: Any = torch.while_loop  # absent in early versions, which can train but not export
        exported: Values = while_loop(goes_on, step, values)
        return exported
    while bool(goes_on(*values)):
        values = step(*values)
    return values


def repeat(times: int, step: Callable[..., Values], values: Values) -> Values:
    """Returns what values have become after a step was taken some times; arguments as in :func:`repeat_while`.

    Example:
        >>> repeat(3, lambda n: (2 * n,), (torch.tensor(1),))
        (tensor(8),)
    """
    if not torch.compiler.is_exporting():
        for _ in range(times):
            values = step(*values)
        return values

    def goes_on(count: Tensor, *_: Tensor) -> Tensor:
        return count < times

    def counted(count: Tensor, *each: Tensor) -> Values:
        return (count + 1, *step(*each))

    return repeat_while(goes_on, counted, (torch.zeros((), dtype=torch.int64), *values))[1:]
