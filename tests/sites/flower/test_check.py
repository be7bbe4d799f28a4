"""``fedvlp deploy check`` names what is wrong, before a server that refuses as a SuperLink or a proxy does."""

import re
import socket
import ssl
import threading
import time
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from shutil import rmtree

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from experiments.sites import credentials
from fedvlp.commands.cli import main
from fedvlp.sites.flower import check

AT_SITE = ["versions", "authority", "home", "key", "port", "TLS", "SuperLink"]
KNOWN, UNKNOWN = 400, 412  # as Flower 1.41 refuses a heartbeat, and a key


class Refusal(BaseHTTPRequestHandler):
    """Answers with the server's status and time."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def date_time_string(self, timestamp=None):
        return super().date_time_string(time.time() + self.server.ahead)

    def log_message(self, *words):
        """Prints nothing."""


@pytest.fixture
def link(tmp_path, monkeypatch):
    """A server, and what a site needs of it in ``folder``."""
    monkeypatch.setattr(credentials, "DAYS", 60)
    made = credentials.make_certificates(tmp_path)
    credentials.make_node_key(tmp_path / "site.key")
    (tmp_path / "images" / "benign").mkdir(parents=True)
    (tmp_path / "site.yaml").write_text("name: north\nroot: images\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server, made.server_key)
    with HTTPServer(("", 0), Refusal) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.status, server.ahead, server.folder = KNOWN, 0, tmp_path
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))  # so that it ends soon
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def checked(link, capsys, end="site", **changed):
    """Returns the exit code, and what is said of each check by its name."""
    folder = link.folder
    options = {"site": folder, "key": folder / "site.key"}
    if end == "server":
        options = {"certificate": folder / "server.pem", "key": folder / "server.key"}
    options |= {"root-certificates": folder / "ca.crt", "superlink": f"127.0.0.1:{link.server_port}", **changed}
    code = main(["deploy", "check", *(f"--{name}={value}" for name, value in options.items())])
    return code, dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())


def test_all_is_right_at_both_ends(link, capsys):
    link.ahead = 200  # a site may be late by as much
    code, said = checked(link, capsys)
    assert code == 0
    assert list(said) == AT_SITE
    assert "'north' with classes benign" in said["home"]
    assert re.match(r"ok +answers, knows the key, and this clock is -(19|20)\d s", said["SuperLink"])
    link.status = UNKNOWN
    code, said = checked(link, capsys, "server")
    assert code == 0
    assert "refuses new keys" in said["SuperLink"]


@pytest.mark.parametrize(
    ("status", "ahead", "words"),
    [
        (UNKNOWN, 0, "flwr supernode register"),
        (502, 0, "a proxy answers 502"),
        (KNOWN, -20, r"this clock is \+[12]\d s"),
        (401, 400, r"this clock is -(39|40)\d s"),
    ],
)
def test_what_a_superlink_refuses(link, capsys, status, ahead, words):
    link.status, link.ahead = status, ahead
    code, said = checked(link, capsys)
    assert code == 1
    assert [name for name in AT_SITE if said[name].startswith("WRONG")] == ["SuperLink"]
    assert re.search(words, said["SuperLink"])


@pytest.mark.parametrize(
    ("spoil", "name", "words"),
    [
        (lambda folder: (folder / "site.key").chmod(0o640), "key", "chmod 600"),
        (lambda folder: credentials.make_node_key(folder / "2").rename(folder / "site.key.pub"), "key", "another key"),
        (lambda folder: rmtree(folder / "images"), "home", "images'. Let"),
        (lambda folder: (folder / "site.yaml").unlink(), "home", "Expected the site's options"),
    ],
)
def test_what_is_wrong_at_the_site(link, capsys, spoil, name, words):
    spoil(link.folder)
    code, said = checked(link, capsys)
    assert code == 1
    assert said[name].startswith("WRONG")
    assert words in said[name]


def test_a_certificate_that_ends_soon(link, capsys, monkeypatch):
    monkeypatch.setattr(check, "SOON", timedelta(days=61))
    code, said = checked(link, capsys)
    assert code == 1
    assert [name for name in AT_SITE if "ends soon" in said[name]] == ["authority", "TLS"]
    assert said["SuperLink"].startswith("ok")


def test_a_name_and_an_authority_that_are_not_the_certificates(link, capsys, tmp_path):
    code, said = checked(link, capsys, superlink=f"127.0.0.2:{link.server_port}")
    assert code == 1
    assert "IP address mismatch" in said["TLS"]
    assert "Sign it for 127.0.0.2" in said["TLS"]
    assert "SuperLink" not in said
    other = credentials.make_certificates(tmp_path / "other")
    code, said = checked(link, capsys, **{"root-certificates": other.authority})
    assert "CERTIFICATE_VERIFY_FAILED" in said["TLS"]
    code, said = checked(link, capsys, "server", certificate=other.server)
    assert "is not the key of" in said["certificate"]
    code, said = checked(link, capsys, "server", certificate=other.server, key=other.server_key)
    assert said["certificate"] == "WRONG  InvalidSignature. Sign a new one with the authority's key."


def test_a_server_that_is_away_and_a_relay_whose_server_is(link, capsys):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def end_both():
            for _ in range(2):
                listener.accept()[0].close()

        thread = threading.Thread(target=end_both)
        thread.start()
        code, said = checked(link, capsys, superlink=f"127.0.0.1:{port}")
        thread.join()
    assert (code, list(said)) == (1, AT_SITE[:-1])
    assert "start the SuperLink behind it" in said["TLS"]
    code, said = checked(link, capsys, superlink=f"127.0.0.1:{port}")
    assert (code, list(said)) == (1, AT_SITE[:-2])
    assert "refused. Start the server" in said["port"]


def test_another_flower_and_no_address(link, capsys, monkeypatch):
    monkeypatch.setattr(check, "version", lambda name: "1.40.0")
    assert "flwr is 1.40.0" in checked(link, capsys)[1]["versions"]
    assert checked(link, capsys, superlink="nowhere") == (1, {})
