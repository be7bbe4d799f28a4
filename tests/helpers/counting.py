"""Counts of floating-point operations, measured by PyTorch."""

from collections.abc import Callable

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def count_operations(run: Callable[[], object]) -> int:
    """Count the operations of all matrix products in a call, attention included.

    Attention runs as plain products, because PyTorch versions differ in the fused kernels that they count.
    """
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        run()
    return counter.get_total_flops()
