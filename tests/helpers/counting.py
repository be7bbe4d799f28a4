"""Counts of the operations of a call, as PyTorch counts them."""

from collections.abc import Callable

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def counted(run: Callable[[], object]) -> int:
    """Returns the operations of a call's matrix products, those of attention among them.

    Attention is made of plain products here: which fused kernels PyTorch counts differs between its versions.
    """
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        run()
    return counter.get_total_flops()
