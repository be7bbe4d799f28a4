"""Arrays in a pickle, read as data: nothing that it names is imported, and no code of it or of numpy's is run.

CIFAR is published as pickles, which torchvision loads as such; a pickle may run any code. The published digest of each
file is checked before it comes here, and here the three names that numpy writes for an array stand for objects that
only keep what the file says of them; any other name ends the reading. The binary edition of CIFAR would need none of
this, but it is not what torchvision leaves, and only the digest of its archive is published, not those of its files.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvlp.utils.errors import UserError


class SavedType:
    """A type of numbers, as a pickle describes it.

    Attributes:
        code: numpy's name of it, such as "u1".
    """

    def __init__(self, code: Any = "", *_: Any) -> None:
        """Takes what numpy's type would be made with."""
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Takes byte order and the like, which bytes do not have."""


class SavedArray:
    """An array, as a pickle describes it.

    Attributes:
        state: version, shape, type, whether columns come first, and bytes.
    """

    state: Any = ()

    def __init__(self, *_: Any) -> None:
        """Takes what numpy would make an empty array of."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def bytes_of(self, width: int) -> NDArray[np.uint8] | None:
        """Returns the rows of an array of bytes [N, width]; None if it is another.

        >>> saved = SavedArray()
        >>> saved.__setstate__((1, (2, 3), SavedType("u1"), False, bytes(range(6))))
        >>> saved.bytes_of(3).tolist(), saved.bytes_of(2)
        ([[0, 1, 2], [3, 4, 5]], None)
        """
        try:
            _, shape, kind, is_by_column, content = self.state
            rows, columns = shape
        except (TypeError, ValueError):
            return None
        is_bytes = isinstance(kind, SavedType) and kind.code in ("u1", b"u1") and isinstance(content, bytes)
        if not is_bytes or is_by_column or columns != width or type(rows) is not int or rows * width != len(content):
            return None
        return np.frombuffer(content, np.uint8).reshape(rows, width)


KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): SavedArray,
    ("numpy", "ndarray"): SavedArray,
    ("numpy", "dtype"): SavedType,
}
"""What stands for the names that a pickle of arrays has."""


class _Unpickler(pickle.Unpickler):
    """Makes plain containers, numbers, bytes, and what stands for arrays."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns what stands for a name; never imports."""
        if (module, name) not in KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return KNOWN[module, name]


def read_pickled(content: bytes, path: str) -> dict[bytes, Any]:
    """Returns the dict that a pickle of Python 2 holds, without running anything in it.

    Args:
        content: the pickle.
        path: what messages call it.

    Raises:
        UserError: if it holds anything but arrays, numbers, texts and lists, or is damaged.
    """
    try:
        found = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle raises nearly every type
        raise UserError(
            f"{path} can't be read as arrays ({error}). It is damaged or no such file: get it again."
        ) from error
    if not isinstance(found, dict):
        raise UserError(f"Expected {path} to hold a dict of arrays; it holds {type(found).__name__}. Get it again.")
    return found
