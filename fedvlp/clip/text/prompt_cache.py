"""A cache for features of prompts that are not trained at present: they change with a round, not with a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.func import debug_unwrap


class PromptFeatureCache:
    """Keeps the last results of functions of prompts; none of prompts that get gradients.

    Args:
        capacity: How many results are kept; the oldest is dropped first.
    """

    def __init__(self, capacity: int = 8) -> None:
        self._entries: deque[tuple[Hashable, list[Tensor], Tensor]] = deque(maxlen=capacity)

    def __call__(self, name: Hashable, function: Callable[..., Tensor], *prompts: Tensor) -> Tensor:
        """Returns `function(*prompts)`, from the cache if it was computed for equal prompts before.

        Args:
            name: Stands for the function, which depends on its prompts alone.
            function: Makes the result.
            prompts: Its arguments.
        """
        if torch.compiler.is_exporting() or not all(map(_is_constant, prompts)):  # what is exported has no values yet
            return function(*prompts)
        device = prompts[0].device.type
        # A tensor of inference mode can't be used in a later graph, and autocast changes the numbers.
        mode = (torch.is_inference_mode_enabled(), torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        key = (name, mode, *((prompt.shape, prompt.dtype, prompt.device) for prompt in prompts))
        for cached_key, cached_prompts, result in self._entries:
            if cached_key == key and all(map(torch.equal, cached_prompts, prompts)):
                # Equal values, not the same tensor: an optimizer changes prompts in place.
                return result
        result = function(*prompts)
        self._entries.append((key, [prompt.detach().clone() for prompt in prompts], result.detach()))
        return result

    def __deepcopy__(self, memo: Any) -> PromptFeatureCache:
        """Returns an empty cache: a copied module may have another CLIP."""
        return PromptFeatureCache(self._entries.maxlen or 0)


def _is_constant(prompt: Tensor) -> bool:
    """Whether a prompt gets no gradient and is one tensor, not a stack that `torch.func.vmap` hides."""
    return not (prompt.requires_grad and torch.is_grad_enabled()) and debug_unwrap(prompt) is prompt
