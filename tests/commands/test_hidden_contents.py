"""An option whose value is the path of a file: the error shows nothing of the file."""

from __future__ import annotations

from contextlib import suppress

import pytest

from fedvlp.commands.cli import main
from fedvlp.commands.hidden_contents import hide_contents

SECRET = "hunter2-root:x:0"


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "shadow"
    path.write_text(f"{SECRET}\nsecond: [line\n")
    return path


def answer(capsys, arguments):
    """What a command that fails says."""
    with suppress(SystemExit):  # a bad option, or else the exit code
        assert main(arguments) == 1
    said = capsys.readouterr()
    return said.out + said.err


@pytest.mark.parametrize("content", [SECRET, f"{SECRET}: {{a: 1}}", f"- {SECRET}", f"a: {SECRET}\nb: [c"])
@pytest.mark.parametrize("option", ["--model.clip", "--data", "--data.partition", "--trainer.local.schedule"])
def test_of_an_option(home, secret, capsys, option, content):
    secret.write_text(content)
    for given in ([f"{option}={secret}"], [option, str(secret)]):
        said = answer(capsys, ["fit", "--config=quickstart", *given])
        assert "error" in said
        assert "hunter2" not in said


def test_of_a_config(home, secret, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "hunter2" not in answer(capsys, ["fit", f"--config={secret}"])
    secret.write_text(SECRET)
    assert "hunter2" not in answer(capsys, ["fit", f"--config={secret}"])
    config = tmp_path / "mine.yaml"
    config.write_text(f"model: {{class_path: ZeroShotCLIP, init_args: {{clip: {secret}}}}}\ndata: StyledShapes\n")
    assert "hunter2" not in answer(capsys, ["fit", f"--config={config}"])


def test_of_a_sweeps_method(home, secret, tmp_path, capsys):
    """A method's config is read as a config: what is wrong in it is said, unless it is none."""
    for content in (SECRET, f"{SECRET}: {{a: 1}}", f"a: {SECRET}\nb: [c"):
        secret.write_text(content)
        said = answer(capsys, ["sweep", "--config=data/styled_shapes", f"--models={secret}"])
        assert "error" in said
        assert "hunter2" not in said
    mine = tmp_path / "mine.yaml"
    mine.write_text("model: {class_path: PromtpFL}\n")
    assert "Did you mean 'PromptFL'?" in answer(capsys, ["sweep", "--config=data/styled_shapes", f"--models={mine}"])


def test_other_errors_stay(secret):
    message = "Expected at least one round, got 0."
    assert hide_contents(message, [f"--model.clip={secret}", "--trainer.rounds", "0"]) == message
    assert hide_contents(message, ["--config", "quickstart", f"--x={secret.parent}", "\0", "x" * 9999]) == message


@pytest.mark.parametrize("option", ["--ckpt_path", "--model.clip.pretrained", "--images", "--output", "--classes"])
def test_what_is_meant_to_be_a_file_is_spoken_of(secret, option):
    message = f"{secret} is no safetensors file; it is said to be of {SECRET}."
    assert hide_contents(message, ["predict", option, str(secret)]) == message
    for other in ("--model.clip", "--data.classes"):
        assert hide_contents(message, ["predict", other, str(secret)]) != message
