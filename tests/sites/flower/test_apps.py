"""The ServerApp forwards bytes, and explains missing replies."""

from pathlib import Path

import pytest

flwr = pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from fedvlp.sites.flower import server_app  # noqa: E402
from fedvlp.sites.flower.packing import pack, unpack  # noqa: E402
from fedvlp.sites.flower.server_app import GridTransport  # noqa: E402
from fedvlp.sites.wire import SiteError, Transport  # noqa: E402
from fedvlp.utils.errors import UserError  # noqa: E402

ODD = bytes(range(256)) + b"\0\0"


class LoopbackGrid(Grid):
    """A grid with nodes that answer when the server pulls replies, in reverse order.

    Args:
        handler: Function from a message and the site's name to the reply.
        sites: The name of each site by its node's id.
        unknown: Nodes that the grid cannot reach.
        silent: Nodes that never reply.
    """

    def __init__(self, handler, sites, unknown=(), silent=()):
        self.handler = handler
        self.sites = sites
        self.unknown = unknown
        self.silent = silent
        self.sent = {}

    def get_node_ids(self):
        return list(self.sites)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            name = "" if message.metadata.dst_node_id in self.unknown else f"message {len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent[name] = message
            ids.append(name)
        return ids

    def pull_messages(self, message_ids):
        requests = [self.sent[name] for name in message_ids]
        return [self._reply(each) for each in reversed(requests) if each.metadata.dst_node_id not in self.silent]

    def _reply(self, message):
        """Answer like Flower, which turns exceptions into error messages."""
        try:
            return self.handler(message, self.sites[message.metadata.dst_node_id])
        except Exception as error:
            return Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)

    def set_run(self, run):
        raise NotImplementedError

    run = create_message = send_and_receive = set_run


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """Allow messages outside Flower's processes, which set three private attributes when they start."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def answer(message, name):
    """Answer with the site's name and the reversed request."""
    request = unpack(message.content)
    if request == b"raise":
        raise OSError("No 'space' left\nat all")
    return Message(pack(name.encode() + request[::-1]), reply_to=message)


def transport(sites, **options):
    return GridTransport(LoopbackGrid(answer, sites, **options), pause=0.001)


def test_bytes_arrive_unchanged_in_both_directions():
    made = transport({7: "a", 9: "b"})
    assert isinstance(made, Transport)
    assert made.names() == ["7", "9"]
    assert dict(made.exchange({"9": ODD, "7": b""}.items(), timeout=12.5)) == {"9": b"b" + ODD[::-1], "7": b"a"}
    assert {message.metadata.ttl for message in made.grid.sent.values()} == {13.5}, "no request outlives its round"


def test_failing_unknown_and_late_sites_do_not_block_others():
    made = transport({6: "f", 7: "a", 8: "b", 9: "c"}, unknown=(8,), silent=(9,))
    replies = dict(made.exchange({"9": b"1", "8": b"2", "7": b"3", "6": b"raise"}.items(), timeout=0.05))
    assert replies["7"] == b"a3"
    assert isinstance(replies["6"], SiteError)
    assert str(replies["6"]) == "did not answer: <class 'OSError'>:<'No 'space' left\\nat all'>"
    assert str(replies["8"]) == "is not connected"
    assert str(replies["9"]) == "did not answer in 0.05 s"


def test_large_replies_are_pulled_one_by_one(monkeypatch):
    monkeypatch.setattr(server_app, "PULLED_BYTES", 100)
    made = transport({7: "a", 8: "b", 9: "c"})
    pulled = []
    pull = made.grid.pull_messages
    monkeypatch.setattr(made.grid, "pull_messages", lambda ids: [pulled.append(len(ids)), *pull(ids)][1:])
    assert dict(made.exchange([("9", b"1"), ("8", b"2"), ("7", b"3" * 40)], timeout=5)).keys() == {"7", "8", "9"}
    assert pulled == [2, 1]


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({"other": ConfigRecord({"bytes": b"x"})}),
        RecordDict({"fedvlp": ConfigRecord({"other": b"x"})}),
        RecordDict({"fedvlp": ConfigRecord({"bytes": "x"})}),
    ],
)
def test_a_foreign_message_is_an_invalid_reply(content):
    with pytest.raises(UserError, match="same version of fedvlp"):
        unpack(content)
    grid = LoopbackGrid(lambda message, name: Message(content, reply_to=message), {7: "a"})
    ((_, reply),) = GridTransport(grid, pause=0.001).exchange({"7": b"x"}.items(), timeout=5)
    assert isinstance(reply, SiteError)
    assert str(reply).startswith("sent an invalid answer. Expected a message from fedvlp")


def run_server(monkeypatch, tmp_path, code, **config):
    """Run the ServerApp, and return the run folder and checkpoint that it passed to `serve`."""
    calls = []

    def serve(*arguments):
        calls.append(arguments)
        return code

    monkeypatch.setattr(server_app, "serve", serve)
    grid = LoopbackGrid(answer, {})
    settings = {"run-dir": "runs", "ckpt-path": "", **config}
    context = Context(1, 1, {}, state=RecordDict(), run_config=settings)
    server_app.make_server_app(tmp_path / "config.yaml")(grid, context)
    ((config_file, carrier, run_dir, checkpoint),) = calls
    assert carrier.grid is grid
    assert config_file == tmp_path / "config.yaml"
    return run_dir, checkpoint


def test_the_server_app_passes_its_settings_and_reports_failure(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/nowhere")
    assert run_server(monkeypatch, tmp_path, 0) == (Path("runs"), None)
    settings = {"run-dir": "~/kept", "ckpt-path": "last"}
    assert run_server(monkeypatch, tmp_path, 0, **settings) == (Path("/nowhere/kept"), "last")
    with pytest.raises(UserError, match="exit code 3"):
        run_server(monkeypatch, tmp_path, 3)
