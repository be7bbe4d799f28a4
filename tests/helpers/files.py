"""Files of tensors as a stranger could write them: changed, and with a checksum that is right again."""

from __future__ import annotations

from fedvlp.utils.tensor_files import read_tensors, write_tensors


def rewritten(path, change):
    """Lets ``change`` alter tensors and header of a file in place, and seals the file anew."""
    tensors, header = read_tensors(path)
    change(tensors, header)
    write_tensors(path, tensors, header)
    return path


def flip(path, place):
    """Turns one bit of a file round; the place is in [0, 1)."""
    content = bytearray(path.read_bytes())
    bit = int(place * 8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))
