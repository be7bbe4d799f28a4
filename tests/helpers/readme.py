"""The README's code blocks and commands, and what its commands leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedvlp.commands.cli import main
from tests.helpers.documents import ROOT, Document, brief

README = Document(ROOT / "README.md")
TEXT = README.text
OFFLINE = ["--model.clip.name=fedvlp-tiny", "--model.clip.pretrained=auto"]
blocks = README.blocks
commands = README.commands


def command(*given: str) -> list[str]:
    """Returns the words of the one command that has certain words."""
    (words,) = [words for words in commands(given[0]) if set(given) <= set(words)]
    return words


def python_block(word: str) -> str:
    """Returns the one Python block that contains a word."""
    (code,) = [code for code in blocks("python") if word in code]
    return code


def run(words: list[str]) -> None:
    """Runs a command of the README in this process, briefly."""
    arguments = words[words.index("fedvlp") + 1 :]
    on_own_images = "my_images" in arguments
    assert main([*arguments, *(OFFLINE if on_own_images else []), *brief(arguments)]) == 0


def newest_run(parent: str) -> Path:
    """Returns the folder of the newest run."""
    return max(Path(parent).glob("*/"))


def summary_of(parent: str) -> Any:
    """Returns the summary of the newest run."""
    return json.loads((newest_run(parent) / "summary.json").read_text(encoding="utf-8"))
