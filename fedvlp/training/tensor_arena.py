"""Memory for what a cohort sends, used again from phase to phase."""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedvlp.core.state import State

ALIGNMENT = 64

Bytes = npt.NDArray[np.uint8]


class TensorArena:
    """Copies states into a few large pages instead of many small allocations.

    A page is used again in the next phase, which saves the operating system from clearing it; but never while anybody
    holds a tensor of it, such as a strategy or a callback. So a copy is as good as any other.

    Args:
        page_bytes: size of a page; a larger tensor has a page of its own.

    >>> buffers = TensorArena(page_bytes=1024)
    >>> copies = [buffers.copy({"prompt": torch.full((2,), value)}) for value in (1.0, 2.0)]
    >>> [copy["prompt"].tolist() for copy in copies]
    [[1.0, 1.0], [2.0, 2.0]]
    """

    def __init__(self, page_bytes: int = 1 << 26) -> None:
        self.page_bytes = page_bytes
        self.pages: list[tuple[Bytes, weakref.ref[Bytes]]] = []
        self.page: dict[torch.dtype, Tensor] = {}  # the one that is being filled, seen as numbers of each type
        self.size = self.used = 0

    def release(self) -> None:
        """Lets go of the page that is being filled."""
        self.page, self.size, self.used = {}, 0, 0

    def copy(self, state: State) -> State:
        """Returns a copy of a state, in the CPU's memory."""
        return {name: self._place(value).copy_(value.detach()) for name, value in state.items()}

    def _place(self, value: Tensor) -> Tensor:
        """Returns memory for a tensor of this shape and type."""
        count, width = value.numel(), value.element_size()
        if self.used + count * width > self.size:
            self._turn(count * width)
        start = self.used
        self.used = -(-(start + count * width) // ALIGNMENT) * ALIGNMENT
        if value.dtype not in self.page:
            self.page[value.dtype] = self.page[torch.uint8].view(value.dtype)
        if value.is_contiguous():  # one view in place of two, for each client
            return self.page[value.dtype].as_strided(value.shape, value.stride(), start // width)
        return self.page[value.dtype].narrow(0, start // width, count).view(value.shape)

    def _turn(self, size: int) -> None:
        """Takes a page of at least this size that nobody holds, or a new one."""
        self.release()
        wanted = -(-max(size, self.page_bytes) // ALIGNMENT) * ALIGNMENT
        index = next((i for i, (page, lent) in enumerate(self.pages) if lent() is None and len(page) >= wanted), None)
        page = np.empty(wanted, np.uint8) if index is None else self.pages.pop(index)[0]
        lent = page[:]  # lives as long as a tensor of it
        self.pages.append((page, weakref.ref(lent)))
        self.page, self.size = {torch.uint8: torch.from_numpy(lent)}, len(page)
