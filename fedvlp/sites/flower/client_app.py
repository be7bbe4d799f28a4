"""The ClientApp: passes a message to the site's warm process, and its reply back.

Flower starts a process for each message. It must be quick, so nothing here imports PyTorch.
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
    """Answer a request of the server."""
    return Message(packed(send_request(_home(context), unpacked(message.content))), reply_to=message)


def packed(content: bytes) -> RecordDict:
    """Put bytes into the content of a Flower message, whose arrays would refuse bfloat16."""
    return RecordDict({RECORD: ConfigRecord({KEY: content})})


def unpacked(content: RecordDict) -> bytes:
    """Extract the bytes from a Flower message, or raise a UserError if it is not one of fedvlp's."""
    record = content.get(RECORD)
    value = record.get(KEY) if isinstance(record, ConfigRecord) else None
    if not isinstance(value, bytes):
        raise UserError(
            f"Expected a message of fedvlp, with bytes in the record {RECORD!r}; found {sorted(content)}. "
            "Run the same version of fedvlp at the server and at all sites."
        )
    return value


def _home(context: Context) -> Path:
    """Find the site's folder, which the SuperNode names."""
    home = context.node_config.get("home")
    if not home:
        raise UserError(
            "The SuperNode does not say which site it is. Start it with --node-config 'home=\"FOLDER\"', the folder of "
            "site.yaml."
        )
    return Path(str(home)).expanduser()
