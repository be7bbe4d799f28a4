"""The ServerApp and the ClientApp forward bytes, and explain missing replies."""

import subprocess
import sys
from pathlib import Path

import pytest

flwr = pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from fedvlp.sites.flower import client_app, server_app  # noqa: E402
from fedvlp.sites.flower.client_app import unpack  # noqa: E402
from fedvlp.sites.flower.server_app import GridTransport  # noqa: E402
from fedvlp.sites.wire import SiteError, Transport  # noqa: E402
from fedvlp.utils.errors import UserError  # noqa: E402
from tests.helpers.documents import environment  # noqa: E402

ODD = bytes(range(256)) + b"\0\0"


class LoopbackGrid(Grid):
    """A grid with nodes that answer when the server pulls replies, in reverse order.

    Args:
        handler: A ClientApp.
        homes: The ``home`` of each node by its id; None for a node started without it.
        unknown: Nodes that the grid cannot reach.
        silent: Nodes that never reply.
    """

    def __init__(self, handler, homes, unknown=(), silent=()):
        self.handler = handler
        self.unknown = unknown
        self.silent = silent
        self.contexts = {}
        for node, home in homes.items():
            config = {} if home is None else {"home": home}
            self.contexts[node] = Context(1, node, config, state=RecordDict(), run_config={})
        self.sent = {}

    def get_node_ids(self):
        return list(self.contexts)

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
        """Answer like Flower's ClientApp process, which turns exceptions into error messages."""
        try:
            return self.handler(message, self.contexts[message.metadata.dst_node_id])
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


@pytest.fixture
def requests(monkeypatch):
    """Record the requests to sites, which answer with their name and the reversed request."""
    seen = []

    def ask(home: Path, request: bytes) -> bytes:
        seen.append((home, request))
        if request == b"raise":
            raise OSError("No 'space' left\nat all")
        return home.name.encode() + request[::-1]

    monkeypatch.setattr(client_app, "send_request", ask)
    return seen


def transport(homes, **options):
    return GridTransport(LoopbackGrid(client_app.app, homes, **options), pause=0.001)


def test_bytes_arrive_unchanged_in_both_directions(requests):
    made = transport({7: "/site/a", 9: "/site/b"})
    assert isinstance(made, Transport)
    assert made.names() == ["7", "9"]
    assert dict(made.exchange({"9": ODD, "7": b""}, timeout=12.5)) == {"9": b"b" + ODD[::-1], "7": b"a"}
    assert {message.metadata.ttl for message in made.grid.sent.values()} == {13.5}, "no request outlives its round"
    assert sorted(requests) == [(Path("/site/a"), b""), (Path("/site/b"), ODD)]


def test_a_sites_home_may_be_relative_to_the_user_but_not_missing(requests, monkeypatch):
    monkeypatch.setenv("HOME", "/nowhere")
    replies = dict(transport({7: "~/a", 8: None, 9: ""}).exchange({"7": b"x", "8": b"x", "9": b"x"}, timeout=5))
    assert replies["7"] == b"ax"
    assert requests == [(Path("/nowhere/a"), b"x")]
    for name in ("8", "9"):
        assert "does not name the site's home" in str(replies[name])


def test_failing_unknown_and_late_sites_do_not_block_others(requests):
    made = transport({6: "/f", 7: "/a", 8: "/b", 9: "/c"}, unknown=(8,), silent=(9,))
    replies = dict(made.exchange({"9": b"1", "8": b"2", "7": b"3", "6": b"raise"}, timeout=0.05))
    assert replies["7"] == b"a3"
    assert isinstance(replies["6"], SiteError)
    assert str(replies["6"]) == "did not answer: <class 'OSError'>:<'No 'space' left\\nat all'>"
    assert str(replies["8"]) == "is not connected"
    assert str(replies["9"]) == "did not answer in 0.05 s"


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({"other": ConfigRecord({"bytes": b"x"})}),
        RecordDict({"fedvlp": ConfigRecord({"other": b"x"})}),
        RecordDict({"fedvlp": ConfigRecord({"bytes": "x"})}),
    ],
)
def test_a_foreign_message_is_an_invalid_reply(content, requests):
    with pytest.raises(UserError, match="same version of fedvlp"):
        unpack(content)
    grid = LoopbackGrid(lambda message, context: Message(content, reply_to=message), {7: "/a"})
    ((_, reply),) = GridTransport(grid, pause=0.001).exchange({"7": b"x"}, timeout=5)
    assert isinstance(reply, SiteError)
    assert str(reply).startswith("sent an invalid answer. Expected a message from fedvlp")


def run_server(monkeypatch, tmp_path, code, **config):
    """Run the ServerApp, and return the run folder and checkpoint that it passed to `serve`."""
    calls = []

    def serve(*arguments):
        calls.append(arguments)
        return code

    monkeypatch.setattr(server_app, "serve", serve)
    grid = LoopbackGrid(client_app.app, {})
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


def test_the_client_app_imports_no_slow_package():
    slow = "{'torch', 'lightning', 'open_clip', 'wandb'}"
    heavy = f"import sys, fedvlp.sites.flower.client_app; print({slow} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", heavy], env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stderr
