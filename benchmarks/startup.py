"""Time until a command prints its first output, and until the first batch."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.measure import Measurement, measure_for
from benchmarks.tables import Table, number, seconds_with_spread

NOTES = """Each runs in a separate process, and is measured from start to end. The floor is the import of the packages
that every run needs: PyTorch, Lightning and open_clip. The first batch belongs to the quickstart (TRIP, the tiny CLIP,
generated images). It is measured to the end of the first local step, first with empty caches and then with the files
that the first run left."""
IMPORTS = "import torch, lightning, open_clip"
LIGHT = ("data list", "compare --help", "report --help", "sweep --help", "verify --help", "cost --help")


def tables(quick: bool, figures: Path | None = None) -> Iterator[Table]:
    """Make one table."""
    python = [sys.executable]
    program = [*python, "-m", "fedvlp"]
    print_config = [*program, "fit", "--config", "quickstart", "--print_config"]
    commands = {
        "Python alone": [*python, "-c", "pass"],
        "the imports": [*python, "-c", IMPORTS],
        "fedvlp --help": [*program, "--help"],
        **{f"fedvlp {words}": [*program, *words.split()] for words in LIGHT},
        "fedvlp fit --help": [*program, "fit", "--help"],
        "fedvlp fit --config quickstart --print_config": print_config,
    }
    seconds = 2.0 if quick else 15.0
    most = 2 if quick else 7
    found = {label: measure_for(partial(_run, command), seconds, most=most) for label, command in commands.items()}
    with tempfile.TemporaryDirectory() as folder:
        first_batch = [*python, "-m", "benchmarks.first_batch", folder]
        found["first batch, cold"] = measure_for(lambda: _run(first_batch), 0.0)
        found["first batch, warm"] = measure_for(lambda: _run(first_batch), seconds, most=most)
    floor = found["the imports"].median
    rows = [_row(label, measurement, floor) for label, measurement in found.items()]
    yield Table("startup", ("", "seconds", "least to greatest", "repeats", "ratio to the imports"), rows)


def _row(label: str, measurement: Measurement, floor: float) -> list[str]:
    return [label, *seconds_with_spread(measurement.seconds), number(measurement.median / floor)]


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
