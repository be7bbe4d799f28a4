"""Full precision for decisions, which must not hang on the rounding of a faster arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

Others = ParamSpec("Others")
Result = TypeVar("Result")


def without_autocast(function: Callable[Concatenate[Tensor, Others], Result]) -> Callable[..., Result]:
    """Returns a function, of a tensor and more, that computes in the precision of what it is given."""

    @wraps(function)
    def run(tensor: Tensor, *args: Others.args, **kwargs: Others.kwargs) -> Result:
        with torch.autocast(tensor.device.type, enabled=False):
            return function(tensor, *args, **kwargs)

    return run
