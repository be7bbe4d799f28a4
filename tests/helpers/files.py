"""Files of tensors that were changed or damaged."""

from __future__ import annotations

from fedvlp.utils.tensor_files import read_tensors, write_tensors


def rewritten(path, change):
    """Lets ``change`` alter tensors and header of a file in place."""
    tensors, header = read_tensors(path)
    change(tensors, header)
    write_tensors(path, tensors, header)
    return path


def cut_short(path):
    """Leaves the first half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
