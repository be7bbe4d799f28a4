"""The ClientApp, which forwards messages to the site's warm process and returns the replies.

Flower starts a process for each message. It must start quickly, so this module does not import PyTorch.
"""

from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedvlp.sites.daemon import send_request
from fedvlp.utils.errors import UserError

RECORD = "fedvlp"
KEY = "bytes"
app = ClientApp()


@app.train()  # type: ignore[untyped-decorator]
def answer(message: Message, context: Context) -> Message:
    """Answer a request from the server."""
    return Message(pack(send_request(_home(context), unpack(message.content))), reply_to=message)


def pack(content: bytes) -> RecordDict:
    """Put bytes into the content of a Flower message, because Flower's arrays do not support bfloat16."""
    return RecordDict({RECORD: ConfigRecord({KEY: content})})


def unpack(content: RecordDict) -> bytes:
    """Extract the bytes from a Flower message, or raise a UserError if fedvlp did not send it."""
    record = content.get(RECORD)
    value = record.get(KEY) if isinstance(record, ConfigRecord) else None
    if not isinstance(value, bytes):
        raise UserError(
            f"Expected a message from fedvlp with bytes in the record {RECORD!r}, found {sorted(content)}. "
            "Run the same version of fedvlp at the server and at all sites."
        )
    return value


def _home(context: Context) -> Path:
    home = context.node_config.get("home")
    if not home:
        raise UserError(
            "The SuperNode's config does not name the site's home. Start it with --node-config 'home=\"FOLDER\"', "
            "where FOLDER contains site.yaml."
        )
    return Path(str(home)).expanduser()
