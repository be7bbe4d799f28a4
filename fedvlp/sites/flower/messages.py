"""What a Flower message holds: the bytes of a request or a reply, whatever they mean."""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

from fedvlp.utils.errors import UserError

RECORD = "fedvlp"
KEY = "bytes"


def packed(content: bytes) -> RecordDict:
    """Returns bytes as the content of a Flower message."""
    return RecordDict({RECORD: ConfigRecord({KEY: content})})


def unpacked(content: RecordDict) -> bytes:
    """Returns the bytes in a Flower message.

    Raises:
        UserError: if the message is not one of fedvlp's.
    """
    record = content.get(RECORD)
    value = record.get(KEY) if isinstance(record, ConfigRecord) else None
    if not isinstance(value, bytes):
        raise UserError(
            f"Expected a message of fedvlp, with bytes in the record {RECORD!r}; found {sorted(content)}. "
            "Run the same version of fedvlp at the server and at all sites."
        )
    return value
