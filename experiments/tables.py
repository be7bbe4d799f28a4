"""Cells of the studies' tables, and their blocks in README files."""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.options import Choice, parse
from experiments.runs import SeededRuns, StudyRun
from fedvlp.utils.text_table import markdown_table


def tested_role(runs: SeededRuns) -> str:
    """Choose the role for comparing a row: held-out domains or, if there are none, test splits."""
    return "test" if runs[0][0].held_out is None else "held_out"


def complete(runs: SeededRuns) -> SeededRuns:
    """List the seeds whose runs have all finished."""
    return [of_seed for of_seed in runs if _is_complete(of_seed)]


def seed_means(runs: SeededRuns, role: str) -> list[float]:
    """Compute, for each seed, the mean accuracy over held-out domains in percent."""
    return [_mean_accuracy(of_seed, role) for of_seed in runs]


def _is_complete(runs: Sequence[StudyRun]) -> bool:
    return all(run.is_done for run in runs)


def _mean_accuracy(runs: Sequence[StudyRun], role: str) -> float:
    return statistics.mean(run.accuracy(role) for run in runs)


def spread(values: Sequence[float]) -> str:
    """Format the mean and, for several values, the standard deviation.

    >>> spread([60.0, 64.0]), spread([60.0])
    ('62.0 ± 2.0', '60.0')
    """
    mean = f"{statistics.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.pstdev(values):.1f}"


def describe(runs: SeededRuns) -> str:
    """Describe data, CLIP, protocol, rounds and seeds of a row, in one line."""
    run = runs[0][0]
    held_out = ""
    if run.held_out is not None:
        held_out = f"held out in turn: {', '.join(str(other.held_out) for other in runs[0])}; "
    protocol = re.sub(r"held-out domain: [^;]*; ", "", run.summary["protocol"])
    seeds = ", ".join(str(of_seed[0].seed) for of_seed in runs)
    model = run.setting.clip
    data = Path(run.setting.data).name
    return f"{data}, {model}; {held_out}{protocol}; {run.summary['rounds']} rounds, last round; seeds {seeds}"


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Format a table with text in the first columns and numbers in the others."""
    return markdown_table(head, ["---"] * texts + ["---:"] * (len(head) - texts), lines)


def write_block(readme: Path, name: str, new: str) -> None:
    """Write a text between the README's marks ``<!-- name -->`` and ``<!-- /name -->``.

    Raises:
        ValueError: If the marks are missing.
    """
    text = readme.read_text(encoding="utf-8")
    start = f"<!-- {name} -->"
    end = f"<!-- /{name} -->"
    if text.count(start) != 1 or text.count(end) != 1:
        raise ValueError(f"Expected {start} and {end} once each in {readme}. Add them at the position of the table.")
    before, rest = text.split(start)
    readme.write_text(f"{before}{start}\n{new}\n{end}{rest.split(end)[1]}", encoding="utf-8")


def print_table(parser: argparse.ArgumentParser, table: Callable[[Choice], str], readme: Path) -> None:
    """Print a study's table, and write it into the README if ``--readme`` names a mark there."""
    parser.add_argument("--readme", metavar="NAME", help="also write it into the README, at the mark with this name")
    choice = parse(parser)
    text = table(choice)
    sys.stdout.write(f"{text}\n")
    if choice.options.readme:
        write_block(readme, choice.options.readme, text)
