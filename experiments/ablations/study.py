"""Definition of a study: the variants of a method that a table or figure of its paper compares."""

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
        label: Name in the table.
        config: Name of the method's config.
        overrides: Arguments of ``fedvlp`` that define the variant.
        paper: Labels in ``papers.csv``: none if the paper has no number, several if the paper leaves open which number
            belongs to the variant.
    """

    label: str
    config: str
    overrides: tuple[str, ...] = ()
    paper: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """A table or figure of a paper.

    Attributes:
        name: Name of the file.
        paper: Short name of the paper, as in ``papers.csv``.
        table: Table or figure, as in ``papers.csv``.
        title: Subject of the study.
        held_out: ``all`` domains in turn, or ``none``.
        common: Arguments of ``fedvlp`` shared by all variants.
        variants: Rows of the table.
        notes: Deviations from the paper with reasons, and points that the paper leaves open.
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
    """List the names of all studies."""
    return sorted(path.stem for path in (HERE / "studies").glob("*.yaml"))


def load_study(name: str) -> Study:
    """Read a study.

    Raises:
        ValueError: If there is no study with this name.
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
    """Make a row from its entry in the file."""
    labels = [paper] if isinstance(paper, str) else paper
    return Variant(label, config or default, tuple(arguments.split()), tuple(label for label in labels if label))


@cache
def paper_numbers() -> dict[tuple[str, str, str], dict[str, str]]:
    """Read the papers' numbers, in percent by data set, for each (paper, table, label)."""
    numbers: dict[tuple[str, str, str], dict[str, str]] = {}
    with (HERE / "papers.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            numbers.setdefault((row["paper"], row["table"], row["label"]), {})[row["dataset"]] = row["value"]
    return numbers
