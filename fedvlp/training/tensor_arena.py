"""Memory for what a cohort sends, used again from phase to phase."""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedvlp.core.state import State

ALIGNMENT = 64
"""Tensors begin at multiples of so many bytes."""

Bytes = npt.NDArray[np.uint8]


class TensorArena:
    """Copies states into a few large pages instead of many small allocations.

    A page is used again in the next phase, which saves the operating system from clearing it; but never while anybody
    holds a tensor of it, such as a strategy or a callback. So a copy is as good as any other.

    Args:
        page_bytes: size of a page; a larger tensor has a page of its own.

    >>> arena = TensorArena(page_bytes=1024)
    >>> copies = [arena.copy({"prompt": torch.full((2,), value)}) for value in (1.0, 2.0)]
    >>> [copy["prompt"].tolist() for copy in copies]
    [[1.0, 1.0], [2.0, 2.0]]
    """

    def __init__(self, page_bytes: int = 1 << 26) -> None:
        self.page_bytes = page_bytes
        self.pages: list[tuple[Bytes, weakref.ref[Bytes]]] = []
        self._current: dict[torch.dtype, Tensor] = {}  # the page that is being filled, seen as each type
        self._size = 0
        self._used = 0

    def release(self) -> None:
        """Lets go of the page that is being filled."""
        self._current = {}
        self._size = 0
        self._used = 0

    def copy(self, state: State) -> State:
        """Returns a copy of a state, in the CPU's memory."""
        return {name: self._allocate(value).copy_(value.detach()) for name, value in state.items()}

    def _allocate(self, value: Tensor) -> Tensor:
        """Returns memory for a tensor of this shape and type."""
        count = value.numel()
        width = value.element_size()
        if self._used + count * width > self._size:
            self._new_page(count * width)
        start = self._used
        self._used = _aligned(start + count * width)
        if value.dtype not in self._current:
            self._current[value.dtype] = self._current[torch.uint8].view(value.dtype)
        page = self._current[value.dtype]
        if value.is_contiguous():  # one view in place of two, for each client
            return page.as_strided(value.shape, value.stride(), start // width)
        return page.narrow(0, start // width, count).view(value.shape)

    def _new_page(self, size: int) -> None:
        """Takes a page of at least this size that nobody holds, or a new one."""
        self.release()
        wanted = _aligned(max(size, self.page_bytes))
        page = self._free_page(wanted)
        if page is None:
            page = np.empty(wanted, np.uint8)
        lent = page[:]  # this view lives exactly as long as a tensor of it
        self.pages.append((page, weakref.ref(lent)))
        self._current = {torch.uint8: torch.from_numpy(lent)}
        self._size = len(page)

    def _free_page(self, wanted: int) -> Bytes | None:
        """Takes a page that is large enough and of which nobody holds a tensor; None if there is none."""
        for index, (page, lent) in enumerate(self.pages):
            if lent() is None and len(page) >= wanted:
                del self.pages[index]
                return page
        return None


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT
