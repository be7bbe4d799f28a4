"""The server's way to its sites: Flower's grid as a :class:`fedvlp.sites.transport.Transport`."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedvlp.sites.flower.messages import packed, unpacked
from fedvlp.sites.transport import SiteError
from fedvlp.utils.errors import UserError

RAISED = re.compile(r"<class '(?P<kind>[\w.]+)'>:<'(?P<text>.*)'>", re.DOTALL)
"""How Flower words what a ClientApp raised."""


@dataclass(frozen=True)
class GridTransport:
    """Sends requests as Flower messages, and waits for the replies.

    Args:
        grid: Flower's grid of the run.
        pause: seconds between two questions for replies. Flower's own ``send_and_receive`` waits 3 s, which would be
            most of a short round.
    """

    grid: Grid
    pause: float = 0.25

    def names(self) -> list[str]:
        """Returns the ids of the connected nodes."""
        return [str(node) for node in self.grid.get_node_ids()]

    def exchange(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | SiteError]:
        """Sends each node its request; returns its reply, or why there is none.

        Args:
            requests: what to send, by the node's id.
            timeout: seconds to wait for all replies together.
        """
        deadline = time.monotonic() + timeout
        waiting, answers = self._sent(requests, timeout)
        while waiting and time.monotonic() < deadline:
            for reply in self.grid.pull_messages(list(waiting)):
                name = waiting.pop(reply.metadata.reply_to_message_id, None)
                if name is not None:
                    answers[name] = _content(reply)
            if waiting:
                time.sleep(self.pause)
        return answers | {name: SiteError(f"did not answer in {timeout:g} s") for name in waiting.values()}

    def _sent(
        self, requests: Mapping[str, bytes], timeout: float
    ) -> tuple[dict[str, str], dict[str, bytes | SiteError]]:
        """Returns the nodes from which replies will come, by the message's id, and what is known of the others."""
        # A request that outlived its round would only keep a site that comes back from the next one. A second more,
        # since Flower's words for what it has thrown away say less than ours for who is late.
        lifetime = timeout + 1
        messages = [
            Message(packed(request), int(name), MessageType.TRAIN, ttl=lifetime) for name, request in requests.items()
        ]
        ids = list(self.grid.push_messages(messages))
        waiting: dict[str, str] = {}
        answers: dict[str, bytes | SiteError] = {}
        for name, message_id in zip(requests, ids, strict=True):
            if message_id:
                waiting[message_id] = name
            else:
                answers[name] = SiteError("is not connected")
        return waiting, answers


def _content(reply: Message) -> bytes | SiteError:
    """Returns what a node has replied, or why it did not."""
    if reply.has_error():
        return SiteError(f"did not answer: {_in_words(reply.error.reason)}")
    try:
        return unpacked(reply.content)
    except UserError as error:
        return SiteError(f"did not answer as it should. {error}")


def _in_words(reason: str | None) -> str:
    """Returns Flower's reason, without the brackets that it puts around what a ClientApp raised.

    >>> _in_words("<class 'OSError'>:<'No space left'>")
    'OSError: No space left'
    """
    raised = RAISED.fullmatch(reason or "")
    return f"{raised['kind']}: {raised['text']}" if raised else reason or "Flower gives no reason"
