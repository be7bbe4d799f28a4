"""CIFAR's files as they were published: pickles that Python 2 wrote, here opcode by opcode."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def text(value: bytes) -> bytes:
    """A text of Python 2."""
    return pickle.BINSTRING + struct.pack("<i", len(value)) + value


def number(value: int) -> bytes:
    """A number of up to 32 bits."""
    return pickle.BININT + struct.pack("<i", value)


def sequence(items: Sequence[bytes], end: bytes) -> bytes:
    """A list or a tuple, by the opcode that ends it."""
    start = pickle.EMPTY_LIST if end == pickle.APPENDS else b""
    return start + pickle.MARK + b"".join(items) + end


def named(module: str, name: str) -> bytes:
    """What a pickle imports."""
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def array(values: NDArray[np.uint8]) -> bytes:
    """A two-dimensional array of bytes."""
    no = pickle.NONE
    empty = [named("numpy", "ndarray"), sequence([number(0)], pickle.TUPLE), text(b"b")]
    kind = named("numpy", "dtype") + sequence([text(b"u1"), number(0), number(1)], pickle.TUPLE) + pickle.REDUCE
    about_kind = [number(3), text(b"|"), no, no, no, number(-1), number(-1), number(0)]
    kind += sequence(about_kind, pickle.TUPLE) + pickle.BUILD
    shape = sequence([number(size) for size in values.shape], pickle.TUPLE)
    state = sequence([number(1), shape, kind, pickle.NEWFALSE, text(values.tobytes())], pickle.TUPLE)
    made = named("numpy.core.multiarray", "_reconstruct") + sequence(empty, pickle.TUPLE) + pickle.REDUCE
    return made + state + pickle.BUILD


def dictionary(entries: dict[bytes, bytes]) -> bytes:
    """A whole file: a dict with texts as keys."""
    items = [text(key) + value for key, value in entries.items()]
    return pickle.PROTO + b"\x02" + pickle.EMPTY_DICT + pickle.MARK + b"".join(items) + pickle.SETITEMS + pickle.STOP


def batch_pickle(pixels: NDArray[np.uint8], labels: Sequence[int], labels_key: str) -> bytes:
    """A file of pixels [N, 3072] and labels."""
    listed = sequence([number(label) for label in labels], pickle.APPENDS)
    return dictionary({b"batch_label": text(b"a batch"), labels_key.encode(): listed, b"data": array(pixels)})


def names_pickle(names: Sequence[str], names_key: str) -> bytes:
    """A file of the names of classes."""
    return dictionary({names_key.encode(): sequence([text(name.encode()) for name in names], pickle.APPENDS)})
