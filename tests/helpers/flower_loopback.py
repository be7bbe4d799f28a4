"""Flower's two apps called in one process: no SuperLink, no SuperNode, no socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Handler = Callable[[Message, Context], Message]


@contextmanager
def flower_process() -> Iterator[None]:
    """Lets messages be made outside Flower's own processes, which set three private attributes when they start."""
    before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id = 1
    TaskIdentity.run_id = 1
    TaskIdentity.node_id = 1
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before


class LoopbackGrid(Grid):
    """A grid whose nodes answer when they are asked for replies, the last first.

    Args:
        handler: a ClientApp.
        homes: the ``home`` of each node by its id; None for a node that was started without one.
        unknown: nodes that the grid refuses to send to.
        silent: nodes that never reply.
    """

    def __init__(
        self,
        handler: Handler,
        homes: dict[int, str | None],
        unknown: tuple[int, ...] = (),
        silent: tuple[int, ...] = (),
    ) -> None:
        self.handler = handler
        self.unknown = unknown
        self.silent = silent
        self.contexts = {}
        for node, home in homes.items():
            config = {} if home is None else {"home": home}
            self.contexts[node] = Context(1, node, config, state=RecordDict(), run_config={})
        self.sent: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: Any) -> list[str]:
        ids = []
        for message in messages:
            name = "" if message.metadata.dst_node_id in self.unknown else f"message {len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent[name] = message
            ids.append(name)
        return ids

    def pull_messages(self, message_ids: Any) -> list[Message]:
        asked = [self.sent[name] for name in message_ids]
        return [self._reply(each) for each in reversed(asked) if each.metadata.dst_node_id not in self.silent]

    def _reply(self, message: Message) -> Message:
        """Answers as Flower's process of a ClientApp does, also where the app raises."""
        try:
            return self.handler(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *given: Any, **options: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *given: Any, **options: Any) -> list[Message]:
        raise NotImplementedError
