"""Common parts of all reference steps: frozen towers, text calls, and calls that are measured separately."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.reference_towers import ReferenceText
from benchmarks.steps import StepBatch


@dataclass(frozen=True)
class Call:
    """A part of a step, forward and backward, and its number of occurrences.

    Attributes:
        label: Name of the part.
        run: Does it.
        times: Number of occurrences in the step.
    """

    label: str
    run: Callable[[], object]
    times: float = 1


class Reference:
    """A step of one method. Subclasses define its loss and the calls of towers that it consists of.

    Args:
        module: Our method, whose prompts are used.
        cut: Whether text sequences end with the longest class's name.
    """

    def __init__(self, module: Any, cut: bool) -> None:
        self.module = module
        self.clip = module.clip
        self.cut = cut
        self.scale = module.clip.logit_scale
        self.texts = self.text(module.class_names)

    def text(self, class_names: list[str]) -> ReferenceText:
        """Make the text tower for these names, with one placeholder per vector of the method's prompt."""
        return ReferenceText(self.clip, class_names, self.prompt_length, self.cut)

    @property
    def prompt_length(self) -> int:
        """Number of learned vectors of a text prompt."""
        return int(self.module.text.prompt_length)

    def loss(self, batch: StepBatch) -> Tensor:
        """Compute the loss of a batch.

        Args:
            batch: The batch; its only used constants are routing weights, which TRIP's released code also precomputes.
        """
        raise NotImplementedError

    def calls(self, batch: StepBatch) -> list[Call]:
        """List the calls of towers in a step, for steps that take too long or too much memory."""
        raise NotImplementedError

    def text_call(self, label: str, prompt: Tensor, times: float = 1, learns: bool = True) -> Call:
        """Make a text call, with a third of the classes if there are many, so that its graph fits into memory.

        Args:
            label: Name of the call.
            prompt: The prompt [L, D], or one for each of the first J blocks [J, L, D].
            times: Number of occurrences of the whole call in the step.
            learns: Whether it has a backward pass.
        """
        whole = self.texts
        few = whole if len(whole) < 100 else whole.first(-(-len(whole) // 3))
        label += "" if few is whole else f", {len(few)} of {len(whole)} classes"

        def encode(prompt: Tensor) -> Tensor:
            return few(prompt) if prompt.ndim == 2 else few(prompt[0], prompt[1:])

        run = partial(backward if learns else without_gradient, encode, prompt)
        return Call(label, run, times * len(whole) / len(few))

    def frozen(self, images: Tensor) -> Tensor:
        """Compute features of images without prompts."""
        with torch.no_grad():
            features: Tensor = cast(Any, self.clip.model).encode_image(images)  # open_clip's own tower
        return features


def backward(encode: Callable[[Tensor], Tensor], prompt: Tensor) -> None:
    """Encode with a prompt, forward and backward."""
    learned = prompt.detach().clone().requires_grad_()
    features = encode(learned)
    torch.autograd.backward(features, torch.ones_like(features))


@torch.no_grad()
def without_gradient(encode: Callable[[Tensor], Tensor], prompt: Tensor) -> None:
    """Encode with a prompt, only forward."""
    encode(prompt)


def train(reference: Reference, batch: StepBatch) -> None:
    """Run a step without the optimizer."""
    reference.loss(batch).backward()  # type: ignore[no-untyped-call]
