"""Sites on 127.0.0.1: the parts of the script, and a whole federation with TLS and registered keys."""

import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra `flower`")

from experiments.sites import run
from experiments.sites.comparison import differences, newest_run
from experiments.sites.credentials import HOST, make_certificates, make_node_key
from experiments.sites.processes import Processes
from experiments.sites.relay import Relay
from experiments.sites.setting import Setting
from experiments.sites.times import RunTimes, read_times
from fedvlp.commands.cli import main
from fedvlp.runs.events import append_events
from fedvlp.sites.site_config import read_site_config
from fedvlp.utils.tensor_files import write_tensors

SECONDS = 300


@pytest.fixture
def echo():
    """Start a server that returns received bytes twice and in capitals, and yield its port."""
    with socket.create_server((HOST, 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    while chunk := connection.recv(1000):
                        connection.sendall(chunk.upper() * 2)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_a_relay_forwards_and_counts_bytes(echo):
    relay = Relay(echo)
    with socket.create_connection((HOST, relay.port)) as connection:
        connection.sendall(b"abc")
        assert connection.recv(100) == b"ABCABC"
    assert (relay.up, relay.down, relay.connections) == (3, 6, 1)
    relay.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((HOST, relay.port), timeout=1)


def test_the_certificate_is_valid_for_one_address_and_authority(tmp_path):
    made = make_certificates(tmp_path / "one")
    other = make_certificates(tmp_path / "other")
    for path in (made.server_key, tmp_path / "key"):
        if path.name == "key":
            assert make_node_key(path).read_bytes().startswith(b"ecdsa-sha2-nistp384 ")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert handshake(made, made.authority, HOST) == "ok"
    assert "IP address mismatch" in handshake(made, made.authority, "127.0.0.2")
    assert "verify failed" in handshake(made, other.authority, HOST)


def handshake(server, authority, name):
    """Describe the outcome of a TLS handshake between a server with these certificates and a client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.server, server.server_key)
    client, server_end = socket.socketpair()

    def serve():
        try:
            context.wrap_socket(server_end, server_side=True).close()
        except OSError:
            server_end.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        ssl.create_default_context(cafile=authority).wrap_socket(client, server_hostname=name).close()
        return "ok"
    except ssl.SSLError as error:
        return str(error)
    finally:
        client.close()
        thread.join()


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="finds processes with Linux's /proc")
def test_all_processes_end_even_outside_their_process_group(tmp_path):
    child = "import time; open('ready', 'w').close(); time.sleep(99)"
    leaves = f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)"
    processes = Processes(tmp_path, {"SAID": "yes"})
    processes.start("first", [sys.executable, "-c", f"import subprocess, sys, time; {leaves}; time.sleep(99)"])
    processes.start("second", [sys.executable, "-c", "import os; print(os.environ['SAID'])"])
    began = time.monotonic()
    while not (tmp_path / "ready").exists() and time.monotonic() - began < 30:
        time.sleep(0.01)
    assert processes.wait("second", 30) == 0
    assert processes.text("second") == "yes\n"
    assert processes.code("first") is None
    processes.end_started()
    assert processes.code("first") is not None
    (left,) = processes.end_left(patience=1)
    assert "time.sleep(99)" in left
    assert processes.living() == {}


def finished_run(folder, value, loss="0.5"):
    """Write a folder that looks like a finished run."""
    folder.mkdir(parents=True)
    append_events(folder, [{"event": "fit_ended", "after_round": 1}])
    write_tensors(folder / "prompts.safetensors", {"prompt": torch.tensor([1.0, value])}, {})
    (folder / "metrics.csv").write_text(f"round,loss,seconds\n1,{loss},{value}\n", encoding="utf-8")
    return folder


def test_differences_between_runs_are_named(tmp_path):
    one = finished_run(tmp_path / "runs" / "a" / "1", 2.0)
    assert newest_run(tmp_path / "runs") == one
    assert differences(one, finished_run(tmp_path / "same", 2.0)) == []
    assert differences(one, finished_run(tmp_path / "other", 2.25, "0.75")) == [
        "prompts.safetensors: prompt differs by up to 0.25",
        "metrics.csv: loss in round 1 is 0.5 and 0.75",
    ]
    tensors = {"prompt": torch.tensor([1.0, 2.0]), "personal/0/prompt": torch.zeros(2)}
    write_tensors(tmp_path / "same" / "prompts.safetensors", tensors, {})
    assert differences(one, tmp_path / "same") == [], "personal tensors at the sites count as a difference"
    write_tensors(one / "prompts_best.safetensors", {}, {})
    assert "prompts_best.safetensors is missing" in differences(one, tmp_path / "same")[0]
    with pytest.raises(FileNotFoundError, match="no run"):
        newest_run(tmp_path / "nowhere")


def test_times_are_read_from_events(tmp_path):
    (tmp_path / "run").mkdir()
    for event in ("fit_started", "round_started", "round_ended", "round_started", "round_ended"):
        append_events(tmp_path / "run", [{"event": event}])
    read = read_times(tmp_path / "run")
    assert len(read.rounds) == 2
    assert read.begun <= read.rounds[0][0] <= read.rounds[0][1] <= read.rounds[1][0]
    times = RunTimes(0, ((1, 3), (3, 8), (8, 9), (9, 13)))
    assert times.seconds == [2, 5, 1, 4]
    assert times.later == 4


def test_each_site_has_only_its_own_folder(image_root, tmp_path):
    setting = Setting("promptfl", 2, image_root, "photo")
    homes = setting.make_homes(tmp_path)
    assert setting.sites == [*homes]
    for name, home in homes.items():
        config = read_site_config(home)
        assert config.name == name
        assert config.root == str(image_root / name)
    assert "photo" not in homes


def test_three_sites_with_keys_equal_the_simulation(image_root, tmp_path, capfd, monkeypatch):
    """The only test that starts Flower's processes."""
    monkeypatch.setattr(run, "simulate", lambda setting, output: main(setting.simulation(output)))
    arguments = ["--method", "promptfl", "--rounds", "2", "--images", str(image_root)]
    more = ["--", "--trainer.evaluate_every=2", "--trainer.baselines=[]"]
    assert run.main([*arguments, "--output", str(tmp_path / "out"), "--seconds", str(SECONDS), *more]) == 0
    printed = capfd.readouterr().out
    assert printed.splitlines()[-1] == "equal"
    assert "Flower reports finished:completed" in printed
    assert "later rounds" in printed
    assert not subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False).stdout
