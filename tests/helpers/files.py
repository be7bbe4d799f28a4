"""Files of tensors that were changed."""

from fedvlp.utils.tensor_files import read_tensors, write_tensors


def rewritten(path, change):
    """Lets ``change`` alter tensors and header of a file in place."""
    tensors, header = read_tensors(path)
    change(tensors, header)
    write_tensors(path, tensors, header)
    return path
