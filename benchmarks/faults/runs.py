"""Comparison of the files of two runs, byte for byte."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

COMPARED = ("prompts.safetensors", "prompts_best.safetensors")


def newest_run(parent: Path) -> Path:
    """Find the newest run folder in a folder.

    Raises:
        FileNotFoundError: If there is none.
    """
    runs = sorted(path for path in parent.glob("*/") if path.is_dir())
    if not runs:
        raise FileNotFoundError(f"There is no run in {parent}.")
    return runs[-1]


def checkpoints(run: Path) -> list[Path]:
    """List the checkpoints of a run, oldest first."""
    return sorted((run / "checkpoints").glob("round-*.safetensors"))


def metrics(run: Path) -> list[dict[str, str]]:
    """Read the metrics of a run without times; empty if there is no table."""
    path = run / "metrics.csv"
    if not path.is_file():
        return []
    rows = []
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        rows.append({name: value for name, value in row.items() if "seconds" not in name})
    return rows


def digests(run: Path, files: tuple[str, ...] = COMPARED) -> dict[str, str]:
    """Compute a digest of each file that must be equal, and of the metrics without times."""
    found = {}
    for name in files:
        path = run / name
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
    found["metrics.csv"] = hashlib.sha256(repr(metrics(run)).encode()).hexdigest()
    return found


def differing(one: Path, other: Path) -> list[str]:
    """List the files that differ between two runs."""
    first = digests(one)
    second = digests(other)
    return [name for name in first if first[name] != second[name] or first[name] == "missing"]
