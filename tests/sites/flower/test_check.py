"""``fedvlp deploy check`` names each problem, against a server that rejects like a SuperLink or a proxy."""

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

AT_SITE = ["versions", "authority", "home", "start", "key", "TLS", "SuperLink"]
KNOWN, UNKNOWN = 400, 412  # Flower 1.41's answers to a heartbeat, and to an unknown key


class Refusal(BaseHTTPRequestHandler):
    """Answer with the server's status and time."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def date_time_string(self, timestamp=None):
        return super().date_time_string(time.time() + self.server.ahead)

    def log_message(self, *words):
        """Print nothing."""


@pytest.fixture
def link(tmp_path, monkeypatch):
    """Start a server, with a site's files in its ``folder``."""
    monkeypatch.setattr(credentials, "DAYS", 60)
    monkeypatch.setattr(check, "STARTED", "pass")
    made = credentials.make_certificates(tmp_path)
    credentials.make_node_key(tmp_path / "site.key")
    (tmp_path / "images" / "benign").mkdir(parents=True)
    (tmp_path / "site.yaml").write_text("name: north\nroot: images\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server, made.server_key)
    with HTTPServer(("", 0), Refusal) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.status, server.ahead, server.folder = KNOWN, 0, tmp_path
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))  # poll often, to stop quickly
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def checked(link, capsys, end="site", **changed):
    """Run the checks, and return the exit code and the result of each check by name."""
    folder = link.folder
    options = {"site": folder, "key": folder / "site.key"}
    if end == "server":
        options = {"certificate": folder / "server.pem", "key": folder / "server.key"}
    options |= {"root-certificates": folder / "ca.crt", "superlink": f"127.0.0.1:{link.server_port}", **changed}
    code = main(["deploy", "check", *(f"--{name}={value}" for name, value in options.items())])
    return code, dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())


def test_all_checks_pass_at_site_and_server(link, capsys):
    link.ahead = 200  # within the accepted clock difference
    code, results = checked(link, capsys)
    assert code == 0
    assert list(results) == AT_SITE
    assert "'north' with classes benign" in results["home"]
    assert re.match(r"ok +answers, knows the key, and this clock is -(19|20)\d s", results["SuperLink"])
    link.status = UNKNOWN
    code, results = checked(link, capsys, "server")
    assert code == 0
    assert "refuses new keys" in results["SuperLink"]


@pytest.mark.parametrize("labels", [["scar", "burn"], ["scar|?burn", ""]])
def test_a_table_names_the_classes_of_a_site(labels, link, capsys):
    (link.folder / "images.csv").write_text(f"path,label\n1.png,{labels[0]}\n2.png,{labels[1]}\n")
    several = str("" in labels).lower()
    (link.folder / "site.yaml").write_text(
        f"name: north\ntable: images.csv\nseveral_labels: {several}\ncache_dir: null\n"
    )
    code, results = checked(link, capsys)
    assert code == 0
    assert "'north' with classes burn, scar" in results["home"]


@pytest.mark.parametrize(
    ("status", "ahead", "words"),
    [
        (UNKNOWN, 0, "flwr supernode register"),
        (502, 0, "a proxy answers 502"),
        (KNOWN, -20, r"this clock is \+[12]\d s"),
        (401, 400, r"this clock is -(39|40)\d s"),
    ],
)
def test_rejections_of_a_superlink_are_explained(link, capsys, status, ahead, words):
    link.status, link.ahead = status, ahead
    code, results = checked(link, capsys)
    assert code == 1
    assert [name for name in AT_SITE if results[name].startswith("WRONG")] == ["SuperLink"]
    assert re.search(words, results["SuperLink"])


@pytest.mark.parametrize(
    ("spoil", "name", "words"),
    [
        (lambda folder: (folder / "site.key").chmod(0o640), "key", "chmod 600"),
        (lambda folder: credentials.make_node_key(folder / "2").rename(folder / "site.key.pub"), "key", "another key"),
        (lambda folder: rmtree(folder / "images"), "home", "images'. Let"),
        (lambda folder: (folder / "site.yaml").unlink(), "home", "Expected the site's options"),
    ],
)
def test_problems_at_the_site_are_explained(link, capsys, spoil, name, words):
    spoil(link.folder)
    code, results = checked(link, capsys)
    assert code == 1
    assert results[name].startswith("WRONG")
    assert words in results[name]


@pytest.mark.parametrize(
    ("changed", "words"),
    [(("MOST_SECONDS", 0), "a restart may lose messages"), (("STARTED", "import nothing"), "Repair the installation")],
)
def test_a_process_that_starts_slowly_or_not_at_all_is_wrong(link, capsys, monkeypatch, changed, words):
    monkeypatch.setattr(check, *changed)
    code, results = checked(link, capsys)
    assert code == 1
    assert results["start"].startswith("WRONG")
    assert words in results["start"]


def test_a_certificate_that_expires_soon_is_wrong(link, capsys, monkeypatch):
    monkeypatch.setattr(check, "SOON", timedelta(days=61))
    code, results = checked(link, capsys)
    assert code == 1
    assert [name for name in AT_SITE if "renew it" in results[name]] == ["authority", "TLS"]
    assert results["SuperLink"].startswith("ok")


def test_a_certificate_of_another_host_or_authority_is_wrong(link, capsys, tmp_path):
    code, results = checked(link, capsys, superlink=f"127.0.0.2:{link.server_port}")
    assert code == 1
    assert "IP address mismatch" in results["TLS"]
    assert "sign its certificate for 127.0.0.2" in results["TLS"]
    assert "SuperLink" not in results
    other = credentials.make_certificates(tmp_path / "other")
    code, results = checked(link, capsys, **{"root-certificates": other.authority})
    assert "CERTIFICATE_VERIFY_FAILED" in results["TLS"]
    code, results = checked(link, capsys, "server", certificate=other.server)
    assert "is not the key of" in results["certificate"]
    code, results = checked(link, capsys, "server", certificate=other.server, key=other.server_key)
    assert results["certificate"] == "WRONG  InvalidSignature. Sign a new one with the authority's key."


def test_an_unreachable_server_and_a_relay_without_server(link, capsys):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        code, results = checked(link, capsys, superlink=f"127.0.0.1:{port}")
        thread.join()
    assert (code, list(results)) == (1, AT_SITE[:-1])
    assert "start the server" in results["TLS"]
    code, results = checked(link, capsys, superlink=f"127.0.0.1:{port}")
    assert (code, list(results)) == (1, AT_SITE[:-1])
    assert "refused. Check name and firewalls" in results["TLS"]


def test_another_version_of_flower_and_an_invalid_address(link, capsys, monkeypatch):
    monkeypatch.setattr(check, "version", lambda name: "1.40.0")
    assert "flwr is 1.40.0" in checked(link, capsys)[1]["versions"]
    assert checked(link, capsys, superlink="nowhere") == (1, {})
