"""Edits of tensor files."""

from fedvlp.utils.tensor_files import read_tensors, write_tensors


def rewrite(path, change):
    """Apply ``change`` to the tensors and the header of a file, in place."""
    tensors, header = read_tensors(path)
    change(tensors, header)
    write_tensors(path, tensors, header)
    return path
