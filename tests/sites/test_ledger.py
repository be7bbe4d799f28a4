"""A site's ledger records every message before it leaves, and reveals changed lines."""

import hashlib
import math
import stat

import pytest
import torch

from fedvlp.commands.cli import main
from fedvlp.sites import ledger as ledgers
from fedvlp.sites.ledger import Ledger, read_ledger
from fedvlp.sites.wire import Message, read_reply, split
from fedvlp.sites.worker import Site
from tests.helpers.sites import Deployment, InProcess, in_process, make_site, method_config

CONTENT = Message("trained", {}, {"prompt": torch.tensor([0.25, -2.0])}).to_bytes()


def printed(home, capsys):
    code = main(["site", "ledger", str(home)])
    return code, capsys.readouterr().out


def test_the_ledger_has_every_message_of_a_run_and_reveals_changed_lines(tmp_path, image_root, capsys):
    deployment = Deployment(tmp_path, image_root)
    usual = in_process(deployment.homes)
    messages = []

    def recorded(request):
        reply = usual.sites["node-0"](request)
        for pair in zip(split(request), split(reply), strict=True):
            messages.extend(pair)
        return reply

    assert deployment.serve(method_config("promptfl"), InProcess({**usual.sites, "node-0": recorded})) == 0
    home = deployment.homes["node-0"]
    Site(home).handle(b"rubbish")
    entries = [entry for _, entry in read_ledger(home)]
    assert [entry["bytes"] for entry in entries[:-2]] == [len(content) for content in messages]
    assert [entry["way"] for entry in entries] == ["came", "left"] * (len(entries) // 2)
    trained = [entry for entry in entries if entry["kind"] == "trained"]
    uploads = [reply for reply in map(read_reply, messages[1::2]) if reply.kind == "trained"]
    for entry, upload in zip(trained, uploads, strict=True):
        value = upload.tensors["prompt"]
        digest = hashlib.sha256(value.numpy().tobytes()).hexdigest()
        assert entry["tensors"] == {"prompt": {"shape": [*value.shape], "bytes": 4 * value.numel(), "sha256": digest}}
        assert entry["epsilon"] is None
    downloads = [entry for entry in entries if entry["kind"] == "train"]
    assert [entry["round"] for entry in downloads] == [entry["round"] for entry in trained] == [0, 1]
    assert all(entry["norm"] > 0 for entry in trained)
    code, text = printed(home, capsys)
    assert code == 0
    assert f"largest sent: trained in round 1, {trained[0]['bytes']:,} bytes" in text
    assert "2 updates sent, largest norm" in text
    assert "no bound epsilon" in text
    assert "refused 1 times: this site sent a message that is truncated" in text
    assert text.splitlines()[-2:] == [f"last hash: {entries[-1]['hash']}", "no line was changed"]
    (path,) = (home / "ledger").iterdir()
    assert stat.S_IMODE((home / "ledger").stat().st_mode) == 0o700
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], lines[4].replace('"bytes": ', '"bytes": 1'), *lines[5:]]) + "\n")
    code, text = printed(home, capsys)
    assert code == 1
    assert text.splitlines()[-2:] == [
        "line 5 was changed",
        "a line was changed or is missing before line 6",
    ]
    path.write_text("\n".join([*lines[:4], *lines[5:]]) + "\n")
    assert printed(home, capsys)[1].endswith("a line was changed or is missing before line 5\n")


def test_a_killed_process_does_not_break_the_chain(tmp_path, image_root, capsys):
    home = make_site(tmp_path, "ink", image_root / "ink")
    Ledger(home).add("came", "train", CONTENT, {"run": "a\n"})
    with open(home / ledgers.FILE, "a") as file:
        file.write('{"time": "2026')
    Ledger(home).add("came", "train", CONTENT, {"run": "a\n"})
    assert [number for number, _ in read_ledger(home)] == [1, 3]
    code, text = printed(home, capsys)
    assert code == 0
    assert text.startswith(r"run 'a\n', ")
    assert f"2 received with {2 * len(CONTENT)} bytes, 0 sent with 0 bytes" in text


def test_epsilon_accumulates_over_a_runs_uploads_and_processes(tmp_path):
    for noise in (2.0, 4.0):
        Ledger(tmp_path).add("left", "trained", CONTENT, {"run": "a"}, noise=noise, norm=1.0)
    Ledger(tmp_path).add("left", "trained", CONTENT, {"run": "b"}, noise=1.0, norm=1.0)
    Ledger(tmp_path).add("left", "trained", CONTENT, {"run": "a"}, noise=0.0, norm=1.0)
    root = math.sqrt(math.log(100_000))
    # rho is 2 / 4, then 2 / 4 + 2 / 16; 2 in the other run.
    expected = [0.5 + 2 * math.sqrt(0.5) * root, 0.625 + 2 * math.sqrt(0.625) * root, 2 + 2 * math.sqrt(2) * root]
    found = [entry["epsilon"] for _, entry in read_ledger(tmp_path)]
    assert found[:3] == pytest.approx(expected)
    assert found[3] is None, "an upload without noise has no bound"


def test_no_reply_leaves_without_a_ledger_entry(tmp_path, image_root, monkeypatch):
    site = Site(make_site(tmp_path, "ink", image_root / "ink"))
    monkeypatch.setattr("os.fsync", lambda file: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        site.handle(b"rubbish")
