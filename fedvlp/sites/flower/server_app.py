"""The ServerApp, which Flower starts for a run; fedvlp trains over Flower's grid as in a simulation."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.superlink.grid import http_grid

from fedvlp.sites.flower.packing import pack, unpack
from fedvlp.sites.server import serve
from fedvlp.sites.wire import Requests, SiteError
from fedvlp.utils.errors import UserError, to_one_line

PULLED_BYTES = 1 << 26  # of replies that the grid returns together
SECONDS_TO_REPEAT = 0.1  # before asking again for a part of a reply that is still on its way; Flower waits 1 s
http_grid.pull_objects = partial(pull_objects, initial_backoff=SECONDS_TO_REPEAT)


def make_server_app(config: Path) -> ServerApp:
    """Create the ServerApp of an app written by ``fedvlp deploy init``, from the path of the app's config."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def train(grid: Grid, context: Context) -> None:
        run_dir = Path(str(context.run_config["run-dir"])).expanduser()
        checkpoint = str(context.run_config["ckpt-path"])
        code = serve(config, GridTransport(grid), run_dir, checkpoint or None)
        # Flower marks a run as failed only if its ServerApp raises.
        if code:
            raise UserError(f"The federation ended with exit code {code}. See its log.")

    return app


@dataclass(frozen=True)
class GridTransport:
    """Transport that sends requests as Flower messages and polls for the replies.

    Args:
        grid: Flower's grid of the run.
        pause: Seconds between polls; Flower's ``send_and_receive`` waits 3 s.
    """

    grid: Grid
    pause: float = 0.25

    def names(self) -> list[str]:
        """List the ids of the connected nodes."""
        return [str(node) for node in self.grid.get_node_ids()]

    def exchange(self, requests: Requests, timeout: float) -> Iterator[tuple[str, bytes | SiteError]]:
        """Send each node its request, by the node's id, and yield each reply, or the reason for its absence."""
        deadline = time.monotonic() + timeout
        # A request must not outlive its round. The additional second lets our error precede Flower's less precise one.
        kind, ttl = MessageType.TRAIN, timeout + 1
        waiting: dict[str, str] = {}  # nodes by the message's id, which is missing if sending failed
        largest = 1
        for name, request in requests:
            message_id = next(iter(self.grid.push_messages([Message(pack(request), int(name), kind, ttl=ttl)])), "")
            if message_id:
                waiting[message_id] = name
            else:
                yield name, SiteError("is not connected")
            largest = max(largest, len(request))
        while waiting and time.monotonic() < deadline:
            ids = list(waiting)
            # Replies are about as large as requests.
            group = max(1, PULLED_BYTES // largest)
            for start in range(0, len(ids), group):
                for reply in self.grid.pull_messages(ids[start : start + group]):
                    name = waiting.pop(reply.metadata.reply_to_message_id, "")
                    if name:
                        yield name, _content(reply)
            if waiting:
                time.sleep(self.pause)
        for name in waiting.values():
            yield name, SiteError(f"did not answer in {timeout:g} s")


def _content(reply: Message) -> bytes | SiteError:
    if reply.has_error():
        return SiteError(f"did not answer: {to_one_line(reply.error.reason or 'Flower gives no reason')}")
    try:
        return unpack(reply.content)
    except UserError as error:
        return SiteError(f"sent an invalid answer. {error}")
