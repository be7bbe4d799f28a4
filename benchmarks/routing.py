"""TRIP's routing: images a second, all at once against token after token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.comparisons import RoutingCase
from benchmarks.hardware_limits import matrix_rate
from benchmarks.in_subprocess import in_subprocess
from benchmarks.measure import Measurement, measure_for
from benchmarks.tables import Table, number, percent, seconds_with_spread

SIDES = {"loop over tokens": False, "batched": True}

NOTES = """Routes for training and for evaluation, 197 tokens of width 768, 4 experts. The loop is that of the released
code's description, one image after another and one token after another. The floor is one product of each image's tokens
with themselves, 2 x 197 x 197 x 768 operations, from which all distances between tokens and centroids follow, at the
rate of a large float32 product in the same process."""


def tables(quick: bool, figures: Path | None = None) -> Iterator[Table]:
    """Returns one table."""
    count = 16 if quick else 128
    floor = 2 * 197**2 * 768
    found = {label: in_subprocess(measure_side, batched=batched, count=count) for label, batched in SIDES.items()}
    first = found["loop over tokens"][0].median
    rows = []
    for label, (measurement, rate) in found.items():
        median = measurement.median
        numbers = [number(count / median), number(first / median), percent(floor * count / rate / median)]
        rows.append([label, *seconds_with_spread(measurement.seconds), *numbers, number(measurement.megabytes)])
    header = ("", "seconds", "least to greatest", "repeats", "images a second", "times faster", "of the floor", "MB")
    yield Table(f"routing: {count} images", header, rows)


def measure_side(batched: bool, count: int) -> tuple[Measurement, float]:
    """Returns what one side took in this process, and the rate of a large product."""
    return measure_for(RoutingCase(batched, count), seconds=5.0), matrix_rate()
