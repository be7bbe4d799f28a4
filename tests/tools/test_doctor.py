"""``fedvlp doctor``: the whole command on the CPU, and the report of failed facts and checks."""

import json
import subprocess
from importlib.metadata import version
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from fedvlp.commands.cli import main
from fedvlp.tools import doctor


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Fail both network requests, like a machine without network."""
    session = SimpleNamespace(head=Mock(side_effect=OSError("no network")))
    monkeypatch.setattr(doctor, "get_session", lambda: session)


def test_all_checks_pass_on_the_cpu_and_the_report_is_json(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "METHODS", ("FedCLIP",))
    assert main(["doctor", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    report = json.loads(printed.out)
    assert f"numpy {version('numpy')}" in report["facts"]["packages"]
    # A service that does not answer is a fact and not a failure.
    assert report["facts"]["W&B"] == report["facts"]["Hugging Face hub"] == "OSError: no network"
    cpu_checks = [check for check in report["checks"] if check["device"] == "cpu"]
    assert cpu_checks[0]["check"].startswith("FedCLIP: ")
    assert len(cpu_checks) == 2


def test_a_difference_between_devices_fails(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "METHODS", ("FedCLIP",))
    monkeypatch.setattr(doctor, "compare_resumed", lambda *_: "left out")
    monkeypatch.setitem(doctor.TOLERANCES, "gradients", -1.0)
    assert main(["doctor", "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [check["ok"] for check in checks[:2]] == [False, True]
    assert checks[0]["found"].endswith("(at most -1e+00)")


@pytest.mark.parametrize(
    ("written", "code", "message"),
    [("1", 0, "is equal"), ("2", 0, "differs from the file of one process"), ("1", 1, "fedvlp: error: no device")],
)
def test_prompts_of_two_processes_are_compared_with_one(written, code, message, monkeypatch, tmp_path):
    def run(program, **_):
        (devices,) = [word[-1] for word in program if word.startswith("--trainer.devices=")]
        folder = tmp_path / devices
        folder.mkdir()
        (folder / "prompts.safetensors").write_text("1" if devices == "1" else written)
        return subprocess.CompletedProcess(program, code, "", "more\nfedvlp: error: no device\n")

    monkeypatch.setattr(subprocess, "run", run)
    ok, found = doctor.attempt(lambda: doctor.compare_processes("cuda", tmp_path, tmp_path))
    assert ok == (message == "is equal")
    assert message in found


def test_extras_and_caches_are_described(monkeypatch, tmp_path):
    needed = ["numpy", "tomli; python_version < '3'"]
    needed += ["absent; python_version < '3' and extra == 'a'", "torch; extra == 'b'"]
    monkeypatch.setattr(doctor, "requires", lambda _: needed)
    monkeypatch.setattr(doctor, "metadata", lambda _: SimpleNamespace(get_all=lambda _: ["a", "b"]))
    assert doctor.packages() == {"numpy": version("numpy")}
    assert doctor.extras() == "a missing: absent; b installed"
    (tmp_path / "file").write_bytes(bytes(7000))
    assert f"{tmp_path}: 7 kB, " in doctor.cache_state(tmp_path)
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert doctor.cache_state(tmp_path / "new" / "folder").endswith("not writable")
