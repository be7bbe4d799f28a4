"""The warm process: one for a site, for its user alone, and there until nobody has asked for a while."""

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedvlp.sites import ask_site
from fedvlp.sites.ask import site_status, start_site, stop_site
from fedvlp.sites.building import build_parts
from fedvlp.sites.daemon import SOCKET, Daemon
from fedvlp.sites.envelope import bare_message
from fedvlp.sites.local_socket import REQUEST, STATUS, STOP, listening, receive, send, socket_folder
from fedvlp.sites.server import _preparation
from fedvlp.sites.wire import Message, read_reply
from fedvlp.utils.errors import UserError
from tests.helpers.images import CLASSES
from tests.helpers.sites import make_site, method_config, sites_config

DESCRIBE = bare_message({"kind": "describe", "run": "", "data": {"classes": CLASSES}})


@pytest.fixture(scope="module")
def warm(tmp_path_factory, image_root):
    """A site whose process two askers have started at the same time; what they were told."""
    home = make_site(tmp_path_factory.mktemp("warm") / "ink", "ink", image_root / "ink")
    with ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda _: ask_site(home, DESCRIBE), range(2)))
    yield home, replies
    stop_site(home)


def test_two_who_ask_at_the_same_time_start_one_process(warm):
    home, replies = warm
    assert [read_reply(reply).values["name"] for reply in replies] == ["ink", "ink"]
    status = site_status(home)
    assert status["state"] == "idle"
    assert status["answered"] >= 2
    start_site(home)
    assert site_status(home)["process"] == status["process"]


def test_only_its_user_can_open_it(warm):
    home, _ = warm
    folder = socket_folder(home)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / SOCKET).stat().st_mode) == 0o600


def test_it_outlives_who_asks(warm):
    home, _ = warm
    before = site_status(home)["process"]
    for content in (b"", b"\x00\x00", bytes(7) + b"\x09abc"):
        with socket.socket(socket.AF_UNIX) as half:
            half.connect(str(socket_folder(home) / SOCKET))
            half.sendall(content)
    assert read_reply(ask_site(home, DESCRIBE)).kind == "described"
    assert site_status(home)["process"] == before
    assert os.getsid(before) == before, "it is in a session of its own"


def test_it_is_started_again_once_it_was_killed(tmp_path, image_root):
    home = make_site(tmp_path / "ink", "ink", image_root / "ink")
    start_site(home)
    process = site_status(home)
    assert process["state"] in ("idle", "busy")
    os.kill(process["process"], 9)
    try:
        assert read_reply(ask_site(home, DESCRIBE)).kind == "described"
        assert site_status(home)["process"] != process["process"]
    finally:
        assert stop_site(home)
    assert site_status(home) == {"state": "stopped"}
    assert not stop_site(home)


def test_a_folder_that_is_no_sites_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"Expected site\.yaml"):
        ask_site(tmp_path, DESCRIBE)
    with pytest.raises(UserError, match=r"Expected site\.yaml"):
        site_status(tmp_path)


def test_a_folder_that_others_can_open_is_refused(tmp_path):
    socket_folder(tmp_path).chmod(0o755)
    with pytest.raises(UserError, match="only this user can open"):
        socket_folder(tmp_path)


def test_a_link_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "warm").symlink_to(tmp_path / "other")
    with pytest.raises(UserError, match="only this user can open"):
        socket_folder(tmp_path)


def test_a_long_path_has_its_socket_among_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    home = tmp_path / ("x" * 120)
    home.mkdir()
    folder = socket_folder(home)
    assert folder.parent == tmp_path / "t"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert socket_folder(home) == folder


class InThread:
    """A daemon in this process."""

    def __init__(self, folder, handle, idle_seconds=0.3, is_last=lambda: None):
        self.path = folder / "s"
        self.server = listening(self.path)
        self.daemon = Daemon(self.server, handle, idle_seconds, is_last)
        self.thread = threading.Thread(target=self.daemon.run)

    def connected(self):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.path))
        return connection

    def told(self, content):
        with self.connected() as connection:
            send(connection, content)
            return receive(connection)

    def end(self):
        self.thread.join(20)
        self.server.close()
        assert not self.thread.is_alive()


@pytest.fixture
def short(tmp_path_factory):
    return tmp_path_factory.mktemp("s")


def test_it_ends_when_nobody_has_asked_for_a_while(short):
    ended = []
    inside = InThread(short, lambda request: request, is_last=lambda: ended.append("last"))
    inside.thread.start()
    assert inside.told(REQUEST + b"abc") == b"abc"
    inside.end()
    assert ended == ["last"]
    assert inside.daemon.answered == 1


def test_who_came_in_the_last_moment_is_answered(short):
    waiting = []

    def is_last():
        connection = inside.connected()
        send(connection, REQUEST + b"late")
        waiting.append(connection)

    inside = InThread(short, lambda request: request[::-1], idle_seconds=0.01, is_last=is_last)
    inside.thread.start()
    inside.end()
    (connection,) = waiting
    with connection:
        assert receive(connection) == b"etal"


def test_its_user_can_look_and_stop_it(short):
    inside = InThread(short, lambda request: b"", idle_seconds=60)
    inside.thread.start()
    assert json.loads(inside.told(STATUS)) == {"process": os.getpid(), "answered": 0}
    assert inside.told(b"?") == b""
    inside.told(STOP)
    inside.end()


def test_others_get_no_answer(short, monkeypatch):
    monkeypatch.setattr("fedvlp.sites.daemon.is_of_this_user", lambda connection: False)
    inside = InThread(short, lambda request: b"secret")
    inside.thread.start()
    with pytest.raises((EOFError, OSError)):
        inside.told(REQUEST + b"abc")
    inside.end()


def test_a_message_longer_than_any_is_not_read(short, monkeypatch):
    inside = InThread(short, lambda request: b"")
    inside.thread.start()
    with inside.connected() as connection:
        connection.sendall((1 << 40).to_bytes(8, "big"))
        assert connection.recv(1) == b""
    inside.end()


LEAN = """
import sys
from fedvlp.sites.daemon import without_figures
without_figures()
from pathlib import Path
from fedvlp.sites.site import Site
from fedvlp.sites.wire import read_reply
site = Site(Path(sys.argv[1]))
print([read_reply(site.handle(Path(name).read_bytes())).kind for name in sys.argv[2:]])
print([name for name in ("wandb", "matplotlib", "matplotlib.pyplot", "fedvlp.federation") if sys.modules.get(name)])
"""


def test_a_site_imports_neither_figures_nor_trackers(tmp_path, image_root):
    config = sites_config(tmp_path / "server.yaml", method_config("trip"), ["ink"])
    parts = build_parts(config)
    prepared = _preparation(parts, parts.data, "run")
    place = {"client": 0, "domain": 0}
    order = {
        "run": "run",
        "round": 0,
        "phase": 0,
        "seed": 1,
        "factor": 1.0,
        "share": 1.0,
        "noise": None,
        "personal": "",
        "optimizer": "",
    }
    messages = {
        "prepare": Message("prepare", {**prepared.values, **place}, prepared.tensors),
        "train": Message("train", {**order, **place}, parts.model.shared_state()),
        "evaluate": Message(
            "evaluate",
            {"run": "run", "baseline": False, "personal": "", "optimizer": "", **place},
            parts.model.shared_state(),
        ),
    }
    for name, message in messages.items():
        (tmp_path / name).write_bytes(message.to_bytes())
    home = make_site(tmp_path / "ink", "ink", image_root / "ink")
    found = subprocess.run(
        [sys.executable, "-c", LEAN, str(home), *(str(tmp_path / name) for name in messages)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.splitlines() == ["['prepared', 'trained', 'evaluated']", "[]"]


def test_who_asks_imports_no_pytorch():
    code = "import sys, fedvlp.sites; fedvlp.sites.ask_site; print({'torch', 'lightning'} & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
