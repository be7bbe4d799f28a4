"""The README's Python blocks run, one as a module of the user's own beside its config."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.documents import BRIEF, environment
from tests.helpers.readme import blocks, command, python_block, summary_of


def test_new_method_in_one_file(desk):
    Path("proximal.py").write_text(python_block("class ProximalPrompt"), encoding="utf-8")
    (config,) = blocks("yaml")
    Path("proximal.yaml").write_text(config, encoding="utf-8")
    words = command("fedvlp", "proximal.yaml")
    assert words[:2] == ["PYTHONPATH=.", "fedvlp"]
    start = "import sys; from fedvlp.commands.cli import main; sys.exit(main())"
    program = [sys.executable, "-c", start, *words[2:], *BRIEF]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = summary_of("runs/ProximalPrompt-StyledShapes-sketch")
    assert summary["communication_per_client_and_round"]["upload_parameters"] > 0
    assert "zero-shot CLIP" in summary["accuracy"]


@pytest.mark.filterwarnings("default")  # a plain Trainer warns of few workers, and of deprecated calls of its own
@pytest.mark.parametrize(
    ("word", "shorter"),
    [
        ("Federation(rounds=3)", {"rounds=3": "rounds=1, local_steps=2"}),
        ("trainer.test", {"max_epochs=3": "max_steps=2, limit_val_batches=1, limit_test_batches=1"}),
        ("ImageFolder(", {"range(3)": "range(1)"}),
    ],
    ids=["federation", "central", "plain"],
)
def test_python_blocks(desk, word, shorter):
    code = python_block(word)
    for long, short in shorter.items():
        assert code.count(long) == 1
        code = code.replace(long, short)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(code, "README.md", "exec"), names)
    if word == "ImageFolder(":
        assert tuple(names["probabilities"].shape) == (1, 2)


def test_every_python_block_is_tested():
    assert len(blocks("python")) == 4
