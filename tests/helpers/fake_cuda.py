"""Tensors that are said to be on a GPU, on machines without one: with shapes, types and devices, but without values."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

VALUES_NEEDED = (DataDependentOutputException, DynamicOutputShapeException)
"""What PyTorch raises where a value decides what is computed, or of which shape."""

CAN_FAKE = torch.backends.cuda.is_built() and hasattr(torch._C, "_ensureCUDADeviceGuardSet")
NEEDS_FAKE_CUDA = pytest.mark.skipif(not CAN_FAKE, reason="needs a PyTorch with CUDA that does without a driver")
"""Skips a test where nothing can be moved to CUDA without a GPU: builds of PyTorch for CPUs, and all of 2.8."""


@contextmanager
def fake_cuda() -> Iterator[Callable[[Tensor], Tensor]]:
    """Yields what moves tensors to CUDA within the block; an operation on tensors of two devices raises.

    Backward passes need a GPU, so gradients that are asked for are zeros.
    """
    gradients = patch("torch.autograd.grad", lambda outputs, inputs, **options: _zeros(inputs))
    # Whether a prompt is the same as before decides only if its features are computed again.
    unequal = patch("torch.equal", return_value=False)
    # What was left on the CPU is taken for a tensor there, so that the error names both devices.
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with gradients, unequal, mode:
        yield lambda tensor: mode.from_tensor(tensor.detach()).to("cuda")


def _zeros(inputs: Any) -> tuple[Tensor, ...]:
    return tuple(map(torch.zeros_like, [inputs] if isinstance(inputs, Tensor) else inputs))


def move_module(module: nn.Module, to_cuda: Callable[[Tensor], Tensor]) -> None:
    """Moves a module's parameters and buffers, and nothing else of it, as ``module.to("cuda")`` does.

    That itself can't be used: a module held in two places, such as the image tower that ADAPT's encoder shares with its
    CLIP, is visited twice, and a parameter without values can't be moved a second time.
    """
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                owner._parameters[name] = nn.Parameter(to_cuda(parameter), parameter.requires_grad)
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                owner._buffers[name] = to_cuda(buffer)
