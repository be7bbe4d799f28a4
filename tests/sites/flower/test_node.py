"""``fedvlp site serve`` answers every message in spite of lost connections, and runs nothing else."""

import inspect
import os
import re
import signal
import threading
import time

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common import serde
from flwr.supercore.inflatable import inflatable_object, inflatable_utils
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import fleet_http_client
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedvlp.commands.cli import main
from fedvlp.sites.flower import node, packing, server_app
from fedvlp.sites.flower.packing import LARGEST_OBJECT, pack, unpack
from fedvlp.sites.process import Status, single_process, site_status, stop_site
from fedvlp.sites.wire import Message, read_reply
from fedvlp.sites.worker import Site
from fedvlp.utils.errors import UserError
from tests.helpers.fleet import fleet, short_waits
from tests.helpers.forks import exit_code, fork
from tests.helpers.sites import description, make_site

DESCRIBE = Message("describe", {"run": "", **description()}).to_bytes()
PATHS = ["pull-messages", "pull-object", "push-messages", "push-object", "confirm-message-received"]


class Enough(BaseException):
    """Ends a node in a thread."""


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """Allow messages outside Flower's processes, shorten all waits, and restore the mask of new files."""
    mask = os.umask(0o022)
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(node, "growing_waits", short_waits)
    monkeypatch.setattr(node, "SECONDS_TO_REPEAT", 0.05)
    yield
    os.umask(mask)


@pytest.fixture
def superlink():
    with fleet() as server:
        yield server


@pytest.fixture
def serve(tmp_path, superlink):
    """Return a function that answers messages in a thread with `handle`, until the server has `count` answers."""
    status = Status(tmp_path)

    def run(handle=lambda request: request[::-1], count=1):
        link = node.Link(superlink.address, None, node.load_key(node.own_key(tmp_path)), status)
        is_over = threading.Event()

        def pull():
            if is_over.is_set():
                raise Enough
            return node.Link.pull(link)

        link.pull = pull

        def work():
            link.connect()
            with pytest.raises(Enough):
                node.answer_messages(tmp_path, link, handle, 0.005)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            superlink.wait(lambda: len(superlink.answers) == count)
        finally:
            is_over.set()
            thread.join(20)
            link.close()
        assert not (tmp_path / node.PENDING).exists()
        return status

    return run


@pytest.mark.parametrize("fault", [500, 503, "drop", 0.05])
def test_no_fault_of_the_connection_loses_or_repeats_a_message(serve, superlink, fault):
    for path in ("activate-node", *PATHS):
        # A SuperLink marks a message as delivered before it answers, so a lost answer loses the message.
        superlink.faults[path] = [fault, fault]
    handled = []

    def handle(request):
        handled.append(request)
        return request * 2

    superlink.ask(b"ab")
    superlink.ask(b"cd")
    assert serve(handle, 2).answered == 2
    assert superlink.answers == [b"abab", b"cdcd"]
    assert handled == [b"ab", b"cd"]


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("pull-object", 0),
        ("push-messages", 0),
        ("push-object", 0),
        ("push-object", 1),
        ("push-object", 2),
        ("confirm-message-received", 0),
    ],
)
def test_no_lost_answer_of_the_server_loses_or_repeats_a_message(serve, superlink, path, number):
    superlink.faults[path] = [None] * number + ["mute"]
    superlink.ask(b"ab")
    superlink.ask(b"cd")
    assert serve(count=2).answered == 2
    assert superlink.answers == [b"ba", b"dc"]


def test_a_large_message_is_cut_and_arrives_whole(serve, superlink):
    content = os.urandom(LARGEST_OBJECT + 3_000_001)
    superlink.ask(content)
    serve()
    assert superlink.answers == [content[::-1]]
    assert superlink.counts["pull-object"] == 6  # message, records, record, array, and two chunks


def test_an_answer_is_pushed_again_if_its_session_ended(serve, superlink):
    superlink.faults["push-object"] = ["lose"]
    superlink.ask(b"abc")
    serve()
    assert superlink.answers == [b"cba"]
    assert superlink.counts["push-messages"] == 2


@pytest.mark.parametrize("path", ["pull-object", "push-messages", "push-object"])
def test_a_message_of_an_ended_run_is_skipped(serve, superlink, path):
    superlink.faults[path] = [(403, 2007)]
    superlink.ask(b"abc")
    superlink.ask(b"abcd")
    serve()
    assert superlink.answers == [b"dcba"]


def test_other_messages_run_nothing_and_are_answered_with_a_reason(tmp_path, serve, superlink, image_root):
    """A server's own Flower app sends its own records; no app is fetched, because the API has no request for it."""
    site = Site(make_site(tmp_path, "ink", image_root / "ink"))
    superlink.ask(RecordDict({"train": ConfigRecord({"code": "import os"})}))
    superlink.ask(RecordDict({"fedvlp": ArrayRecord({"weights": Array("uint8", (1,), "numpy.ndarray", b"\x80")})}))
    superlink.ask(DESCRIBE)
    serve(site.handle, 3)
    *others, own = map(read_reply, superlink.answers)
    assert [reply.values["reason"] for reply in others] == ["sent a message that is truncated or not from fedvlp"] * 2
    assert own.kind == "described"
    assert set(superlink.counts) == {"activate-node", "pull-messages", *PATHS}


def test_a_full_disk_delays_an_answer(serve, superlink, caplog):
    errors = [OSError(28, "No space left on device")] * 2

    def handle(request):
        if errors:
            raise errors.pop()
        return request[::-1]

    superlink.ask(b"abc")
    serve(handle)
    assert superlink.answers == [b"cba"]
    assert "can't write the ledger ([Errno 28] No space left on device): retry in" in caplog.text


def test_a_site_polls_less_and_less(tmp_path, monkeypatch):
    now, pauses = [0.0], []

    def sleep(seconds):
        pauses.append(seconds)
        now[0] += seconds
        if now[0] > 600:
            raise Enough

    monkeypatch.setattr(node.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(node.time, "sleep", sleep)
    link = node.Link("127.0.0.1:1", None, node.load_key(node.own_key(tmp_path)), Status(tmp_path))
    monkeypatch.setattr(link, "pull", lambda: None)
    with pytest.raises(Enough):
        node.answer_messages(tmp_path, link, bytes, None)
    assert (pauses[0], pauses[-1]) == (0.2, 3.0)
    assert pauses == sorted(pauses)
    assert 0.3 <= pauses[150] < 0.35  # after half a minute
    now[0], pauses[:] = 0.0, []
    monkeypatch.setattr(link, "pull", lambda: now.__setitem__(0, now[0] + 0.2))  # a slow server
    with pytest.raises(Enough):
        node.answer_messages(tmp_path, link, bytes, None)
    assert (round(pauses[0], 6), pauses[-1]) == (1.0, 3.0)


@pytest.fixture
def home(tmp_path, image_root):
    return make_site(tmp_path / "home", "ink", image_root / "ink")


def serve_home(home, superlink, *more):
    return ["site", "serve", str(home), f"--superlink={superlink.address}", "--insecure", "--poll=0.01", *more]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"state": "unknown"},
            "The server refuses this site: it does not know the key: at the server, run",
        ),
        ({"faults": {"activate-node": [401]}}, "it does not know the key"),
        ({"ahead": 600, "faults": {"activate-node": [401]}}, " s from the server's: set both by NTP"),
        ({"faults": {"activate-node": [404]}}, "a proxy answers 404"),
    ],
)
def test_a_site_that_is_refused_for_good_ends_with_one_line(home, superlink, capsys, change, line):
    for name, value in change.items():
        if name == "faults":
            superlink.faults.update(value)
        else:
            setattr(superlink, name, value)
    assert main(serve_home(home, superlink)) == 1
    printed = capsys.readouterr().err.splitlines()
    assert line in printed[-1]
    assert site_status(home) == {"state": "stopped"}


def test_a_test_server_registers_a_new_key(tmp_path, serve, superlink):
    superlink.state, superlink.registers = "unknown", True
    superlink.ask(b"abc")
    serve()
    assert (tmp_path / "node.key").stat().st_mode & 0o077 == 0


def test_a_key_that_is_online_elsewhere_waits(serve, superlink):
    superlink.state = "online"

    def end_other():
        superlink.wait(lambda: superlink.counts["activate-node"] >= 4)
        superlink.state = "offline"

    threading.Thread(target=end_other).start()
    superlink.ask(b"abc")
    serve()
    assert superlink.counts["activate-node"] >= 4


def test_a_second_process_is_refused(home, superlink, capsys):
    with single_process(home):
        assert site_status(home)["state"] == "connecting"
        assert main(serve_home(home, superlink)) == 1
    assert re.fullmatch(r"fedvlp: error: Another process already serves .*\n", capsys.readouterr().err)
    with single_process(home):
        pass


def serve_slowly(*words):
    """Serve a site that needs a minute for an answer, unless it is asked for the second time."""
    original = Site.handle

    def handle(site, request):
        marker = site.home / "asked"
        if not marker.exists():
            marker.touch()
            time.sleep(60)
        return original(site, request)

    Site.handle = handle
    raise SystemExit(main(list(words)))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_process_that_ends_while_it_answers_leaves_the_message_to_the_next(home, superlink, tmp_path, how):
    words = serve_home(home, superlink)
    superlink.ask(DESCRIBE)
    first = fork(serve_slowly, *words, output=tmp_path / "first.txt")
    superlink.wait(lambda: (home / "asked").exists())
    status = site_status(home)
    assert (status["state"], status["process"], status["answered"]) == ("busy", first.pid, 0)
    began = time.monotonic()
    os.kill(first.pid, how)
    assert exit_code(first) == (0 if how != signal.SIGKILL else -signal.SIGKILL)
    assert time.monotonic() - began < 10
    assert site_status(home) == {"state": "stopped"}
    second = fork(serve_slowly, *words, output=tmp_path / "second.txt")
    superlink.wait(lambda: superlink.answers)
    assert read_reply(superlink.answers[0]).kind == "described"
    superlink.wait(lambda: site_status(home)["state"] == "idle")
    assert stop_site(home)
    assert exit_code(second) == 0
    assert superlink.state == "online", "Flower gives up the messages of offline nodes"
    assert not stop_site(home)


def test_a_message_above_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(packing, "MAX_BYTES", 1000)
    with pytest.raises(UserError, match="Expected messages of at most 1,000 bytes, got 1,001"):
        pack(bytes(1001))


@pytest.mark.parametrize("size", [0, 1, LARGEST_OBJECT, LARGEST_OBJECT + 1])
def test_bytes_are_unchanged_in_messages_of_any_size(size):
    content = bytes(size)
    assert unpack(pack(content)) == content


def test_the_internals_of_flower_are_as_expected():
    """If this fails, Flower has changed: adapt `node.py` or `server_app.py`, and then the pinned version."""
    methods = ["ActivateNode", "ConfirmMessageReceived", "PullMessages", "PullObject", "PushMessages"]
    for name in [*methods, "PushObject", "RegisterNode", "SendNodeHeartbeat"]:
        assert [*inspect.signature(getattr(FleetHttpClient, name)).parameters] == ["self", "request"]
    assert fleet_http_client.HEARTBEAT_CALL_TIMEOUT == 30
    assert server_app.http_grid.pull_objects.keywords == {"initial_backoff": server_app.SECONDS_TO_REPEAT}
    assert "pull_objects" in server_app.http_grid.HttpGrid.pull_messages.__code__.co_names
    expected = {
        ProtobufClient.__init__: "self base_url interceptors verify timeout retry_invoker",
        NodeAuthHttpInterceptor.__init__: "self private_key public_key",
        inflatable_object.get_all_nested_objects: "obj",
        inflatable_object.get_object_tree: "obj",
        inflatable_object.iterate_object_tree: "tree",
        inflatable_utils.inflate_object_from_contents: "object_id object_contents keep_object_contents objects",
        serde.message_from_proto: "message_proto",
        serde.message_to_proto: "message",
    }
    for function, names in expected.items():
        assert [*inspect.signature(function).parameters] == names.split()


def test_a_wrong_home_or_key_is_one_clear_line(home, tmp_path, superlink, capsys):
    with pytest.raises(UserError, match="Expected the site's options"):
        stop_site(tmp_path)
    assert main(serve_home(home, superlink, f"--key={tmp_path / 'missing'}")) == 1
    assert "can't be served: [Errno 2] No such file" in capsys.readouterr().err
    (home / "wrong.key").touch(mode=0o600)
    assert main(serve_home(home, superlink, f"--key={home / 'wrong.key'}")) == 1
    assert "wrong.key is no private key that can be read" in capsys.readouterr().err
