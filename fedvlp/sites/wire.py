"""Requests and replies as bytes: safetensors, with JSON that is held to a schema. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from safetensors.torch import load, save

from fedvlp.core.state import State, detached
from fedvlp.sites.envelope import KEY, WireError, header_of
from fedvlp.sites.fields import Field, kind_of
from fedvlp.sites.schemas import REPLIES, REQUESTS

MOST_TENSORS = 10_000


@dataclass(frozen=True)
class Message:
    """A request of the server, or a site's reply.

    Attributes:
        kind: one of ``fedvlp.sites.schemas``.
        values: what JSON can hold, with the fields of the kind.
        tensors: what is downloaded or uploaded.
    """

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    tensors: State = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Returns the message as it is sent."""
        text = json.dumps({"kind": self.kind, **self.values})
        # A copy each, since tensors may share memory, which safetensors refuses.
        tensors = {name: value.contiguous() for name, value in detached(self.tensors).items()}
        return bytes(save(tensors, {KEY: text}))


def read_request(content: bytes) -> Message:
    """Returns the request that some bytes are.

    Raises:
        WireError: if they are none; the message names the field and nothing of its content.
    """
    return _read(content, REQUESTS)


def read_reply(content: bytes) -> Message:
    """Returns the reply that some bytes are.

    Raises:
        WireError: as :func:`read_request`.
    """
    return _read(content, REPLIES)


def _read(content: bytes, schemas: Mapping[str, Mapping[str, Field]]) -> Message:
    values = header_of(content)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in schemas:
        raise WireError(f"sent a message of none of the kinds {', '.join(schemas)}")
    schema = schemas[kind]
    for name, each in schema.items():
        if name not in values:
            raise WireError(f"sent no {name}, which should be {each.expected}")
        if not each.accepts(values[name]):
            raise WireError(f"sent {kind_of(values[name])} as {name}, which should be {each.expected}")
    if unknown := sorted(values.keys() - schema.keys()):
        raise WireError(f"sent {len(unknown)} unknown field(s) in a message of the kind {kind}")
    return Message(kind, values, _tensors(content))


def _tensors(content: bytes) -> State:
    try:
        tensors: State = load(content)
    except Exception as error:  # the bytes may be anything, and make safetensors raise anything
        raise WireError("sent tensors that can't be understood") from error
    if len(tensors) > MOST_TENSORS:
        raise WireError(f"sent more than {MOST_TENSORS} tensors")
    return tensors
