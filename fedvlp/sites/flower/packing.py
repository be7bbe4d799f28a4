"""The content of a Flower message: bytes in, bytes out. Flower's own arrays do not support bfloat16."""

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedvlp.sites.wire import MAX_BYTES
from fedvlp.utils.errors import UserError

RECORD = "fedvlp"
KEY = "bytes"
# Flower sends a ConfigRecord as one object. It sends an array as three, but cuts its bytes into chunks of 5 MB.
LARGEST_OBJECT = 4 << 20


def pack(content: bytes) -> RecordDict:
    """Put bytes into the content of a Flower message, or raise a UserError if they are too many."""
    if len(content) > MAX_BYTES:
        raise UserError(f"Expected messages of at most {MAX_BYTES:,} bytes, got {len(content):,}. Send fewer tensors.")
    if len(content) <= LARGEST_OBJECT:
        return RecordDict({RECORD: ConfigRecord({KEY: content})})
    return RecordDict({RECORD: ArrayRecord({KEY: Array("uint8", (len(content),), "bytes", content)})})


def unpack(content: RecordDict) -> bytes:
    """Extract the bytes from a Flower message, or raise a UserError if fedvlp did not send it."""
    record = content.get(RECORD)
    value = record.get(KEY) if isinstance(record, (ArrayRecord, ConfigRecord)) else None
    value = value.data if isinstance(value, Array) else value
    if not isinstance(value, bytes):
        raise UserError(
            f"Expected a message from fedvlp with bytes in the record {RECORD!r}, found {sorted(content)}. "
            "Run the same version of fedvlp at the server and at all sites."
        )
    return value
