"""Comparison of two runs: their tensors, bit by bit, and the numbers of each round."""

from __future__ import annotations

import csv
from pathlib import Path

import torch

from fedvlp.utils.tensor_files import read_tensors

FILES = ("prompts.safetensors", "prompts_best.safetensors")


def newest_run(parent: Path) -> Path:
    """Find the newest run below a folder.

    Raises:
        FileNotFoundError: If there is none.
    """
    found = sorted(path.parent for path in parent.glob("*/*/events.jsonl"))
    if not found:
        raise FileNotFoundError(f"There is no run below {parent}.")
    return found[-1]


def differences(one: Path, other: Path) -> list[str]:
    """Describe the differences between two finished runs; empty if they are equal."""
    found: list[str] = []
    for file in FILES:
        found += _different_tensors(one / file, other / file)
    return found + _different_rows(one / "metrics.csv", other / "metrics.csv")


def _different_tensors(one: Path, other: Path) -> list[str]:
    """Describe the unequal tensors of two files, and their differences."""
    missing = [path for path in (one, other) if not path.exists()]
    if missing:
        return [] if len(missing) == 2 else [f"{missing[0]} is missing"]
    first = read_tensors(one)[0]
    second = read_tensors(other)[0]
    # Personal tensors are at the sites, and not in files of their server.
    in_one = [name for name in sorted(first.keys() ^ second.keys()) if not name.startswith("personal/")]
    found = [f"{one.name}: {name} is in one of them only" for name in in_one]
    for name in sorted(first.keys() & second.keys()):
        if first[name].shape != second[name].shape:
            found.append(f"{one.name}: {name} has the shapes {[*first[name].shape]} and {[*second[name].shape]}")
        elif not torch.equal(first[name], second[name]):
            most = (first[name].double() - second[name].double()).abs().max().item()
            found.append(f"{one.name}: {name} differs by up to {most:.3g}")
    return found


def _different_rows(one: Path, other: Path) -> list[str]:
    """List the unequal columns of two tables of rounds, except for columns of seconds."""
    first = _rows(one)
    second = _rows(other)
    if len(first) != len(second):
        return [f"metrics.csv: {len(first)} and {len(second)} rounds"]
    found = []
    for row, its in zip(first, second, strict=True):
        for name in sorted(row.keys() | its.keys()):
            if row.get(name) != its.get(name):
                found.append(f"metrics.csv: {name} in round {row['round']} is {row.get(name)} and {its.get(name)}")
    return found


def _rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for name in [each for each in row if "seconds" in each]:
            del row[name]
    return rows
