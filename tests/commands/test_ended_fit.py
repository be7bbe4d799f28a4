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
    options = short_fit(image_root, tmp_path)
    return ["fit", "--config=promptfl", *options, "--trainer.name=run", "--trainer.rounds=100000"]


def checkpoints(tmp_path):
    return sorted(tmp_path.glob("runs/run/*/checkpoints/round-*.safetensors"))


def started(arguments, tmp_path):
    """Start a run and wait until it has written two checkpoints."""
    running = fork(fit, arguments, output=tmp_path / "output.txt", OMP_NUM_THREADS="1")
    while len(checkpoints(tmp_path)) < 2:
        assert running.is_alive()
        time.sleep(0.02)
    return running


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_cleanly_with_a_complete_run(arguments, tmp_path, number, code):
    running = started(arguments, tmp_path)
    os.kill(running.pid, number)
    assert exit_code(running) == code
    assert (tmp_path / "output.txt").read_text().endswith("fedvlp: stopped; resume with --ckpt_path last\n")
    assert not list((tmp_path / "runs").rglob(".*"))
    assert load_checkpoint(checkpoints(tmp_path)[-1])[0].server.round >= 2


def test_a_running_run_is_rejected_and_a_dead_one_resumes(arguments, tmp_path, capsys):
    running = started(arguments, tmp_path)
    again = [*arguments, "--ckpt_path=last"]
    assert main(again) == 1
    message = capsys.readouterr().err
    assert "is being trained by another process" in message
    assert message.count("\n") == 1
    running.kill()
    exit_code(running)
    rounds = load_checkpoint(checkpoints(tmp_path)[-1])[0].server.round
    assert main([*again, f"--trainer.rounds={rounds + 1}"]) == 0
    (folder,) = (tmp_path / "runs" / "run").iterdir()
    assert not list((tmp_path / "runs").rglob(".*"))
    assert len((folder / "metrics.csv").read_text().splitlines()) == rounds + 2


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
