"""``fedvlp fit`` is stopped by a signal, or started again while it runs."""

import os
import signal
import sys
import time

import pytest

from fedvlp.commands.cli import Terminated, interrupt_on_sigterm, main
from fedvlp.runs.checkpoint import load_checkpoint
from tests.helpers.forks import exit_code, fork
from tests.helpers.runs import short_fit


def fit(arguments):
    sys.exit(main(arguments))


@pytest.fixture
def arguments(image_root, tmp_path):
    options = [*short_fit(image_root, tmp_path), "--trainer.name=run", "--trainer.baselines=[]"]
    return ["fit", "--config=promptfl", *options, "--trainer.rounds=100000"]


def checkpoints(tmp_path):
    return sorted(tmp_path.glob("runs/run/*/checkpoints/round-*.safetensors"))


def started(arguments, tmp_path):
    """Start a run and wait until it has written two more checkpoints."""
    known = checkpoints(tmp_path)
    running = fork(fit, arguments, output=tmp_path / "output.txt", OMP_NUM_THREADS="1")
    while len({*checkpoints(tmp_path)} - {*known}) < 2:
        assert running.is_alive()
        time.sleep(0.02)
    return running


def test_a_killed_run_resumes_and_sigterm_ends_it_cleanly(arguments, tmp_path, capsys):
    running = started(arguments, tmp_path)
    again = [*arguments, "--ckpt_path=last"]
    assert main(again) == 1
    message = capsys.readouterr().err
    assert "is being trained by another process" in message
    assert message.count("\n") == 1
    running.kill()
    exit_code(running)
    resumed = started(again, tmp_path)
    os.kill(resumed.pid, signal.SIGTERM)
    assert exit_code(resumed) == 143
    assert (tmp_path / "output.txt").read_text().endswith("fedvlp: stopped; resume with --ckpt_path last\n")
    assert not list((tmp_path / "runs").rglob(".*"))
    rounds = load_checkpoint(checkpoints(tmp_path)[-1])[0].server.round
    (folder,) = (tmp_path / "runs" / "run").iterdir()
    assert len((folder / "metrics.csv").read_text().splitlines()) == rounds + 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_each_signal_has_its_exit_code(monkeypatch, capsys, number, code):
    monkeypatch.setattr("fedvlp.tools.cost.command.run_cost", lambda words: signal.raise_signal(number))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert main(["cost"]) == code
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "fedvlp: stopped; resume with --ckpt_path last\n"


def test_sigterm_handlers_are_restored_and_custom_ones_kept():
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with pytest.raises(Terminated), interrupt_on_sigterm():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with interrupt_on_sigterm():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
