"""The background process: one per site, only for its user, and stopped after a period without requests."""

import os
import re
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from benchmarks.house import House
from fedvlp.commands.cli import main
from fedvlp.sites.daemon import SOCKET, STATUS, answer, send_request, site_status, start_site, stop_site, warm_folder
from fedvlp.sites.wire import Message, read_reply
from fedvlp.utils.errors import UserError
from tests.helpers.sites import description, make_site

DESCRIBE = Message("describe", {"run": "", **description()}).to_bytes()


@pytest.fixture(scope="module")
def warm(tmp_path_factory, image_root):
    """Let two callers start a site's process at the same time; return its home and their replies."""
    home = make_site(tmp_path_factory.mktemp("warm") / "ink", "ink", image_root / "ink")
    with ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda _: send_request(home, DESCRIBE), range(2)))
    yield home, replies
    stop_site(home)


def test_two_simultaneous_callers_start_one_process(warm):
    home, replies = warm
    assert [read_reply(reply).values["name"] for reply in replies] == ["ink", "ink"]
    status = site_status(home)
    assert status["state"] == "idle"
    assert status["answered"] >= 2
    start_site(home)
    assert site_status(home)["process"] == status["process"]


def test_the_process_outlives_its_callers(warm):
    home, _ = warm
    before = site_status(home)["process"]
    for content in (b"", b"\x00\x00", bytes(3) + b"\x09abc"):
        with socket.socket(socket.AF_UNIX) as half:
            half.connect(str(warm_folder(home) / SOCKET))
            half.sendall(content)
    assert read_reply(send_request(home, DESCRIBE)).kind == "described"
    assert site_status(home)["process"] == before
    assert os.getsid(before) == before, "the process shares its caller's session"
    assert stat.S_IMODE(warm_folder(home).stat().st_mode) == 0o700
    assert stat.S_IMODE((warm_folder(home) / STATUS).stat().st_mode) == 0o600, "other users can read its file"


def test_a_killed_process_is_restarted(warm, capsys):
    home, _ = warm
    killed = site_status(home)["process"]
    os.kill(killed, 9)
    assert read_reply(send_request(home, DESCRIBE)).kind == "described"
    assert site_status(home)["process"] != killed
    assert [main(["site", action, str(home)]) for action in ("start", "stop", "status", "stop")] == [0, 0, 1, 0]
    printed = capsys.readouterr().out
    assert re.fullmatch(
        "state (idle|busy), process [0-9]+.*\nstopped\nstate stopped\nno process was running\n", printed
    )
    assert site_status(home) == {"state": "stopped"}


@pytest.mark.parametrize("spoiled", ["mode 710", "link", "another user's"])
def test_a_folder_that_others_own_or_can_open_is_rejected(tmp_path, monkeypatch, spoiled):
    warm = warm_folder(tmp_path)
    if spoiled == "mode 710":
        warm.chmod(0o710)
    elif spoiled == "link":
        warm.rename(tmp_path / "other")
        warm.symlink_to(tmp_path / "other")
    else:
        monkeypatch.setattr("os.getuid", lambda: warm.stat().st_uid + 1)
    with pytest.raises(UserError, match="only this user can access"):
        warm_folder(tmp_path)


def test_the_socket_of_a_long_path_is_in_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    home = tmp_path / ("x" * 120)
    home.mkdir()
    folder = warm_folder(home)
    assert folder.parent == tmp_path / "t"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert warm_folder(home) == folder


@pytest.fixture
def answering(tmp_path_factory):
    """Answer in a thread with the reversed request; return the path of the socket and the reported states."""
    path = tmp_path_factory.mktemp("s") / "s"
    reported = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(16)
        thread = threading.Thread(
            target=answer, args=(server, lambda request: request[::-1], 0.5, lambda *state: reported.append(state))
        )
        thread.start()
        yield path, reported
        thread.join(20)
        assert not thread.is_alive(), "it did not end without requests"


def test_the_process_reports_when_it_is_busy(answering):
    path, reported = answering
    for _ in range(2):
        with Client(str(path)) as connection:
            connection.send_bytes(b"abc")
            assert connection.recv_bytes() == b"cba"
    assert reported[:4] == [("idle", 0), ("busy", 0), ("idle", 1), ("busy", 1)]


def test_a_message_that_is_too_long_is_not_read(answering, monkeypatch):
    monkeypatch.setattr("fedvlp.sites.daemon.MAX_BYTES", 2)
    path, reported = answering
    with Client(str(path)) as connection:
        connection.send_bytes(b"abc")
        with pytest.raises((EOFError, OSError)):
            connection.recv_bytes()
    assert ("busy", 0) not in reported


def test_a_site_imports_neither_figures_nor_loggers():
    """Check all direct and indirect imports of a site's process."""
    house = House(Path(__file__).parents[2])
    needed = {"sites.worker"}
    while added := set().union(*(house.imports[name] for name in needed)) - needed:
        needed |= added
    assert not [name for name in needed if name.split(".")[0] in ("federation", "callbacks", "results", "tools")]
    for name in needed:
        assert "import matplotlib" not in house.sources[name]
        assert "import wandb" not in house.sources[name]
