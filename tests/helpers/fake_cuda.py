"""Fake CUDA tensors for machines without a GPU: they have shapes, types and devices, but no values."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

VALUES_NEEDED = (DataDependentOutputException, DynamicOutputShapeException)
"""Errors that PyTorch raises if a tensor's value decides the computation or a shape."""

CAN_FAKE = torch.backends.cuda.is_built() and hasattr(torch._C, "_ensureCUDADeviceGuardSet")
NEEDS_FAKE_CUDA = pytest.mark.skipif(not CAN_FAKE, reason="needs a PyTorch build with CUDA that works without a driver")
"""Skips a test if PyTorch cannot create CUDA tensors without a GPU: CPU builds, and every build of 2.8."""


@contextmanager
def fake_cuda() -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield a function that moves tensors to fake CUDA. Operations on tensors of two devices raise.

    Backward passes need a GPU, so all gradients are zeros. Autocast to bfloat16 is on, as with ``bf16-mixed``: PyTorch
    refuses some operations under a GPU's autocast that it allows under a CPU's.
    """
    gradients = patch("torch.autograd.grad", lambda outputs, inputs, **options: _zeros(inputs))
    # Methods compare prompts only to decide whether their features must be recomputed.
    unequal = patch("torch.equal", return_value=False)
    # Accept real tensors as tensors on the CPU, so that the error names both devices.
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with gradients, unequal, mode:
        # torch.autocast would turn itself off without a GPU.
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            yield lambda tensor: mode.from_tensor(tensor.detach()).to("cuda")
        finally:
            torch.set_autocast_enabled("cuda", False)


def _zeros(inputs: Any) -> tuple[Tensor, ...]:
    return tuple(map(torch.zeros_like, [inputs] if isinstance(inputs, Tensor) else inputs))


def move_module(module: nn.Module, to_cuda: Callable[[Tensor], Tensor]) -> None:
    """Move only a module's parameters and buffers, like ``module.to("cuda")``.

    ``module.to`` would fail: it visits a shared module twice, such as the image tower that ADAPT's encoder shares with
    its CLIP, and a parameter without values cannot be moved again.
    """
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                owner._parameters[name] = nn.Parameter(to_cuda(parameter), parameter.requires_grad)
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                owner._buffers[name] = to_cuda(buffer)
