"""Products with weights, in the weights' own type; frozen ones on a CPU are kept in the order that oneDNN works in."""

from __future__ import annotations

import platform
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import debug_unwrap
from torch.nn.functional import linear

_LEAST_ELEMENTS = 2**17  # of a weight; for smaller ones the detour takes longer than it saves
_ROWS = 64  # of inputs, for which the order is chosen; it suits any number


def multiply(
    inputs: Float[Tensor, "*rows i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, "o"] | None
) -> Float[Tensor, "*rows o"]:
    """Returns x W^T + b by PyTorch's own product, in bfloat16 where W is.

    Args:
        inputs: x.
        weight: W, which alone decides the type: a frozen one that is held in bfloat16 is never cast.
        bias: b.
    """
    if weight.dtype != torch.bfloat16:
        return linear(inputs, weight, bias)
    return linear(inputs.to(weight.dtype), weight, None if bias is None else bias.to(weight.dtype))


class PackedWeights:
    """Copies of frozen weights for oneDNN: each is made when it is first used, one for each direction.

    PyTorch's own products put a weight in order each time, which for few rows takes as long as to multiply. Rounding
    differs from theirs.
    """

    def __init__(self) -> None:
        self._packs: dict[tuple[object, ...], _Pack] = {}

    def __len__(self) -> int:
        """Counts the copies."""
        return len(self._packs)

    def linear(
        self, inputs: Float[Tensor, "*rows i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, "o"] | None
    ) -> Float[Tensor, "*rows o"]:
        """Returns `multiply(x, W, b)`, differentiable in x alone; by PyTorch's product where oneDNN's does not serve.

        Args:
            inputs: x.
            weight: W, large and frozen. In place of a changed one a new copy is made.
            bias: b.
        """
        if not _serves(inputs, weight):
            return multiply(inputs, weight, bias)
        rounded = None if bias is None else bias.to(weight.dtype)
        output: Tensor = _Product.apply(inputs.to(weight.dtype), self, weight, rounded, False)
        return output

    def forget(self) -> None:
        """Frees the copies."""
        self._packs.clear()

    def get(self, weight: Float[Tensor, "o i"], transposed: bool) -> Tensor:
        """Returns the weight, or its transpose, in oneDNN's order."""
        key = (weight.data_ptr(), weight.shape, transposed)
        pack = self._packs.get(key)
        if pack is None or pack.version != weight._version:
            rows = weight.detach().t().contiguous() if transposed else weight.detach()
            reordered = torch.ops.mkldnn._reorder_linear_weight(rows, _ROWS)
            pack = _Pack(reordered, weight.detach(), weight._version)
            self._packs[key] = pack
        return pack.reordered


class _Pack(NamedTuple):
    reordered: Tensor
    weight: Tensor  # holds the weight's memory, so that no other weight can have its address
    version: int


class _Product(torch.autograd.Function):
    """x W^T + b; its gradient is the same product with W's transpose."""

    @staticmethod
    def forward(inputs: Tensor, packs: PackedWeights, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
        pack = packs.get(weight, transposed)
        output: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, pack, bias, "none", [], "")
        return output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.packs = inputs[1]
        ctx.weight = inputs[2]
        ctx.transposed = inputs[4]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # The plain forward is quicker, but only `apply` is differentiable, which second derivatives need.
        multiply = _Product.apply if torch.is_grad_enabled() else _Product.forward
        return multiply(gradient, ctx.packs, ctx.weight, None, not ctx.transposed), None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], inputs: Tensor, *others: Any) -> tuple[Tensor, int]:
        return _Product.apply(inputs.movedim(in_dims[0], 0), *others), 0


@cache
def has_kernel(dtype: torch.dtype = torch.float32) -> bool:
    """Whether oneDNN's product can be called: its operators are private to PyTorch and may change, so it is tried."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    one = torch.ones(1, 1, dtype=dtype)
    try:
        pack = torch.ops.mkldnn._reorder_linear_weight(one, 1)
        return torch.equal(torch.ops.mkldnn._linear_pointwise(one, pack, None, "none", [], ""), one)
    except (AttributeError, RuntimeError):
        return False


def _serves(inputs: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN's product in the weight's type is there for these, and pays."""
    is_half = weight.dtype == torch.bfloat16
    return (
        bool(torch.backends.mkldnn.enabled)
        and not torch.compiler.is_exporting()  # other runtimes do not have it
        and (is_half or inputs.dtype == weight.dtype == torch.float32)
        and inputs.device.type == weight.device.type == "cpu"
        and weight.numel() >= _LEAST_ELEMENTS
        and inputs.numel() > 0
        and not (weight.requires_grad or weight.is_inference())
        and debug_unwrap(weight) is weight  # not a stack of several clients' weights
        and (is_half or not torch.is_autocast_enabled("cpu"))
        and has_kernel(weight.dtype)
    )
