"""Writes the tables of ``docs/lightning.md``: Lightning's hooks, callbacks and options, and ours beside them.

Usage, in the repository's folder::

    python -m docs.lightning            write them anew
    python -m docs.lightning --check    say whether they are as the code is
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import lightning

from fedvlp.federation import Federation
from fedvlp.training.lightning_hooks import CALLED, INSTEAD, REFUSED
from fedvlp.training.trainer_options import INSTEAD as INSTEAD_OF_OPTIONS
from fedvlp.utils.text_table import markdown_table

PAGE = Path(__file__).resolve().parent / "lightning.md"
COMMAND = "python -m docs.lightning"
ARGUMENT = re.compile(r"^        (\w+): (.*(?:\n            .*)*)", re.MULTILINE)
"""An argument of a class and its text, as Google's style writes them."""


def main(arguments: Sequence[str]) -> int:
    """Writes the page, or checks it, and returns the exit code."""
    text = PAGE.read_text(encoding="utf-8")
    made = with_tables(text)
    if "--check" in arguments:
        sys.stdout.write("" if made == text else f"{PAGE.name} is older than the code: run {COMMAND}\n")
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


def with_tables(text: str) -> str:
    """Returns a page with the tables between their marks.

    Raises:
        ValueError: if the page lacks a mark.
    """
    for name, table in tables().items():
        begin = f"<!-- {name}: written by {COMMAND} -->"
        end = f"<!-- end of {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"Expected one pair of marks, {begin} and {end}.")
        text = f"{text.partition(begin)[0]}{begin}\n\n{table}\n\n{end}{text.partition(end)[2]}"
    return text


def tables() -> dict[str, str]:
    """Returns each table by its name."""
    hooks = [[f"`{hook}`", when] for hook, when in CALLED.items()]
    never = [[f"`{hook}`", f"`{other}`"] for hook, other in INSTEAD.items()]
    callbacks = [[f"`{name}`", _marked(text)] for name, text in REFUSED.items()]
    options = [[f"`{name}`", *_option(name)] for name in inspect.signature(lightning.Trainer).parameters]
    left = ["---", "---"]
    return {
        "hooks": markdown_table(["hook", "called when"], left, hooks),
        "never called": markdown_table(["never called", "use"], left, never),
        "callbacks": markdown_table(["refused", "what there is instead"], left, callbacks),
        "options": markdown_table(["Trainer's", "ours", "meaning, or what to use"], ["---", "---", "---"], options),
    }


def _option(name: str) -> tuple[str, str]:
    """Returns our option of the same name with what it means, or what to use in its place."""
    if name in INSTEAD_OF_OPTIONS:
        return "–", _marked(INSTEAD_OF_OPTIONS[name])
    meanings = {found: " ".join(text.split()) for found, text in ARGUMENT.findall(Federation.__doc__ or "")}
    return f"`--trainer.{name}`", meanings[name].replace("``", "`")


def _marked(text: str) -> str:
    """Returns a message with its options as code."""
    return re.sub(r"(?<!`)(--[\w.]+)", r"`\1`", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
