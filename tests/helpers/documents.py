"""Markdown files for tests: their code blocks, commands and named files."""

import os
import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BRIEF = ["--trainer.rounds=1", "--trainer.local.steps=1", "--trainer.enable_progress_bar=false"]
"""Options for a short ``fedvlp fit``."""

NO_BASELINES = "--trainer.baselines=[]"
"""Option for a run of which no test reads the accuracies."""


def brief(arguments: list[str]) -> list[str]:
    """Choose options for a short ``fedvlp fit``: one round of one step, or of the given epochs, on few classes."""
    line = " ".join(arguments)
    options = [option for option in BRIEF if not ("local.epochs" in line and "local.steps" in option)]
    has_icons = "quickstart" in line or "data/icon_domains" in line
    if "classes_per_client 20" in line:
        options += ["--data.num_classes=44", "--data.shots=1"]  # only half of the classes train
    elif has_icons and "num_classes" not in line:
        num_classes = 12 if "protocols/personal" in line else 6  # so that each of eight clients has images
        options.append(f"--data.num_classes={num_classes}")
    return options


SHORTER = {
    "rounds=3": "rounds=1, local=__import__('fedvlp').LocalTraining(steps=1)",
    "max_epochs=3": (
        "max_steps=1, num_sanity_val_steps=0, limit_val_batches=1, limit_test_batches=1, log_every_n_steps=1"
    ),
    "range(3)": "range(1)",
    "IconDomains(": "IconDomains(num_classes=6, ",
}


def shorten_training(code: str) -> str:
    """Shorten the training in a page's Python code."""
    for long, short in SHORTER.items():
        code = code.replace(long, short)
    return code


def names(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@dataclass(frozen=True)
class Document:
    """A Markdown file.

    Attributes:
        path: The file.
    """

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def _blocks(self) -> list[tuple[str, str]]:
        """Language and code of each block, including indented blocks."""
        found = re.findall(r"^( *)```(\w+)\n(.*?)^\1```$", self.text, re.DOTALL | re.MULTILINE)
        return [(language, re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)) for indent, language, code in found]

    def blocks(self, language: str) -> list[str]:
        """List the code blocks of a language, in order."""
        return [code for known, code in self._blocks if known == language]

    def commands(self, start: str) -> list[list[str]]:
        """List the words of each shell command that contains the word ``start``, in order."""
        found: list[list[str]] = []
        for code in self.blocks("bash"):
            for line in code.replace("\\\n", " ").splitlines():
                found += [shlex.split(part) for part in line.split("&&")]
        return [words for words in found if start in words]

    def files(self) -> dict[str, str]:
        """Collect the code of files that are named in the paragraph directly above their block."""
        named = re.findall(r"`([\w.]+\.(?:py|yaml))`[^`]*:\s+```\w+\n(.*?)^```$", self.text, re.DOTALL | re.MULTILINE)
        return {name: code for name, code in named}  # noqa: C416

    def rows(self, mark: str) -> list[list[str]]:
        """List the cells of the first table after ``mark``, row by row, without the header."""
        below = self.text[self.text.rfind("\n", 0, self.text.index(mark)) + 1 :]
        table = re.search(r"(^\|.*\n)+", below, re.MULTILINE).group()
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]

    def links(self) -> list[str]:
        """List the links to other files of the repository."""
        return re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", self.text)


CONTRIBUTING = Document(ROOT / "CONTRIBUTING.md")
README = Document(ROOT / "README.md")
PAGES = [
    README,
    CONTRIBUTING,
    Document(ROOT / "AGENTS.md"),
    Document(ROOT / "SECURITY.md"),
    *map(Document, sorted((ROOT / "docs").rglob("*.md"))),
]
"""All pages of the documentation. Tests find new pages themselves."""

EXAMPLE_PAGES = [page for page in PAGES if page.path.parent == ROOT / "docs" / "contributing"]
"""Pages that test_contributing.py follows from beginning to end, each in its own folder."""


def environment() -> dict[str, str]:
    """Make the environment of a process that can import this package."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([".", str(ROOT)])}
