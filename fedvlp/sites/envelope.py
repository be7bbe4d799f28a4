"""A message without its tensors: one JSON object in the header of a safetensors file. Needs no PyTorch.

What asks a site's warm process is started anew for each message, so it must not import more than this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from safetensors import serialize

KEY = "fedvlp"
LENGTH_BYTES = 8  # before safetensors' header, of which they are the length
MOST_BYTES = 1 << 30
"""Of a whole message: far more than prompts need, and less than a machine has."""
MOST_HEADER_BYTES = 16 << 20
"""Of a header: names of classes and tensors, and options."""


class WireError(Exception):
    """What is wrong with a message, in words that follow on who sent it: they tell nothing of its content."""


def header_of(message: bytes) -> dict[str, Any]:
    """Returns the JSON object of a message; its tensors are not looked at.

    Raises:
        WireError: if there is none, or it is larger than any message of ours.
    """
    if len(message) > MOST_BYTES:
        raise WireError(f"sent more than {MOST_BYTES:,} bytes")
    length = int.from_bytes(message[:LENGTH_BYTES], "little")
    if len(message) < LENGTH_BYTES or length > min(len(message) - LENGTH_BYTES, MOST_HEADER_BYTES):
        raise WireError("sent a message that is cut short, or none of fedvlp's")
    try:
        header = json.loads(message[LENGTH_BYTES : LENGTH_BYTES + length].decode())
        values = json.loads(header["__metadata__"][KEY])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError("sent a message that can't be understood") from error
    if not isinstance(values, dict):
        raise WireError("sent a message that can't be understood")
    return values


def bare_message(values: Mapping[str, Any]) -> bytes:
    """Returns a message without tensors."""
    return bytes(serialize({}, {KEY: json.dumps(values)}))


def failure(reason: str) -> bytes:
    """Returns the reply that there is none, and why.

    Args:
        reason: what follows on the site's name, such as ``has no image``; nothing of images or files may be in it.
    """
    return bare_message({"kind": "failed", "reason": reason})
