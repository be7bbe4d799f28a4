"""Time of the text tower and the optimizer in an unmodified run."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from benchmarks.measure import clock
from fedvlp.clip import PromptedTextEncoder


class Stopwatch:
    """Sum of the seconds of all passes through prompted text encoders, forward and backward, and of optimizers.

    A backward pass lasts from the gradient of the features to the gradient of the prompts.

    Args:
        module: The method.
        device: The device, ``cpu`` or ``cuda``; the program waits for it at each reading of the stopwatch.

    Attributes:
        seconds: Sums by name: ``text`` and ``optimizer``.
    """

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        self._device = device
        self.seconds: dict[str, float] = defaultdict(float)
        self._started: dict[str, float] = {}
        self._handles = [
            register_optimizer_step_pre_hook(lambda *_: self._start("optimizer")),
            register_optimizer_step_post_hook(lambda *_: self._stop("optimizer")),
        ]
        for part in module.modules():
            if isinstance(part, PromptedTextEncoder):
                self._handles.append(part.register_forward_pre_hook(self._before))
                self._handles.append(part.register_forward_hook(self._after))

    def close(self) -> None:
        """Stop measuring."""
        for handle in self._handles:
            handle.remove()

    def _start(self, name: str) -> None:
        self._started[name] = clock(self._device)

    def _stop(self, name: str) -> None:
        self.seconds[name] += clock(self._device) - self._started[name]

    def _before(self, encoder: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Start a forward pass, and let the gradient of the prompts end the backward pass."""
        prompt = arguments[0]
        if prompt.requires_grad:
            prompt = prompt.view_as(prompt)
            prompt.register_hook(lambda gradient: self._stop("text"))
        self._start("text")
        return (prompt, *arguments[1:])

    def _after(self, encoder: nn.Module, arguments: tuple[Any, ...], features: Tensor) -> None:
        """End a forward pass, and let the gradient of the features start the backward pass."""
        self._stop("text")
        if features.requires_grad:
            features.register_hook(lambda gradient: self._start("text"))  # type: ignore[no-untyped-call]
