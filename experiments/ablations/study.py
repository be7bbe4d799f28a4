"""What a study is: the variants of a method that a table or figure of its paper compares."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Variant:
    """A row of the table.

    Attributes:
        label: what the table calls it.
        config: name of its method's config.
        overrides: arguments of ``fedvlp`` that make it.
        paper: its labels in ``papers.csv``: none if the paper prints no number of it, several if the paper leaves open
            which number is its own.
    """

    label: str
    config: str
    overrides: tuple[str, ...] = ()
    paper: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """A table or figure of a paper.

    Attributes:
        name: name of its file.
        paper: the paper's short name, as in ``papers.csv``.
        table: the table or figure, as in ``papers.csv``.
        title: what it studies.
        held_out: ``all`` domains in turn, or ``none``.
        common: arguments of ``fedvlp`` that all variants have.
        variants: its rows.
        notes: what cannot be expressed here and why, and what the paper leaves open.
    """

    name: str
    paper: str
    table: str
    title: str
    held_out: str
    common: tuple[str, ...]
    variants: tuple[Variant, ...]
    notes: tuple[str, ...]


def study_names() -> list[str]:
    """Returns the names of all studies."""
    return sorted(path.stem for path in (HERE / "studies").glob("*.yaml"))


def load_study(name: str) -> Study:
    """Reads a study.

    Raises:
        ValueError: if there is none of this name.
    """
    path = HERE / "studies" / f"{name}.yaml"
    if not path.exists():
        raise ValueError(f"Expected one of {', '.join(study_names())}; got {name!r}.")
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    variants = tuple(_variant(content["config"], **variant) for variant in content["variants"])
    return Study(
        name,
        content["paper"],
        str(content["table"]),
        content["title"],
        content.get("held_out", "all"),
        tuple(content.get("common", ())),
        variants,
        tuple(content.get("notes", ())),
    )


def _variant(default: str, label: str, paper: str | list[str] = "", config: str = "", arguments: str = "") -> Variant:
    """Returns a row as its file has it."""
    labels = [paper] if isinstance(paper, str) else paper
    return Variant(label, config or default, tuple(arguments.split()), tuple(label for label in labels if label))


@cache
def paper_numbers() -> dict[tuple[str, str, str], dict[str, str]]:
    """Returns what the papers print, in percent by data set, for each (paper, table, label)."""
    numbers: dict[tuple[str, str, str], dict[str, str]] = {}
    with (HERE / "papers.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            numbers.setdefault((row["paper"], row["table"], row["label"]), {})[row["dataset"]] = row["value"]
    return numbers
