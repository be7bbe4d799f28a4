"""The ClientApp: passes a message to the site's warm process, and its reply back.

Flower starts a process for each message. It must be quick, so nothing here imports PyTorch, and it holds nothing.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedvlp.sites.ask import ask_site
from fedvlp.sites.flower.messages import packed, unpacked
from fedvlp.utils.errors import UserError

app = ClientApp()


@app.train()  # type: ignore[untyped-decorator]
def answer(message: Message, context: Context) -> Message:
    """Returns the site's reply to a request of the server.

    Raises:
        UserError: if the SuperNode was not told which site it is.
    """
    return Message(packed(ask_site(_home(context), unpacked(message.content))), reply_to=message)


def _home(context: Context) -> Path:
    """Returns the folder of the site: the SuperNode's, or in Flower's simulation that of the node's number."""
    home = context.node_config.get("home")
    number = context.node_config.get("partition-id")  # of simulated nodes alone, so no server names a site's folder
    if not home and number is not None:
        homes = Path(str(context.run_config["homes"])).expanduser()
        home = dict(enumerate(sorted(str(file.parent) for file in homes.glob("*/site.yaml")))).get(number)
    if not home:
        raise UserError(
            "The SuperNode does not say which site it is. Start it with --node-config 'home=\"FOLDER\"', the folder of "
            "site.yaml. In Flower's simulation --run-config 'homes=\"FOLDER\"' names the folder of as many homes."
        )
    return Path(str(home)).expanduser()
