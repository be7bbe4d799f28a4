"""The packed text encoder against 77-token sequences, and batched routing against the loop over tokens.

Run as `python -m benchmarks.text_encoder`. Each side runs in a process of its own, one after the other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.comparisons import CLASS_NAMES, RoutingCase, TextCase
from benchmarks.measure import Measurement, describe_machine, measure
from fedvlp.utils.files import write_text

Result = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Args:
        label: What it is, in words.
        make: Builds what is measured.
        repeats: How often it is measured; slow sides less often.
        warm_up: Whether it runs once before, unmeasured.
    """

    label: str
    make: Callable[[], Callable[[], Result]]
    repeats: int
    warm_up: bool = True


COMPARISONS: dict[str, list[Side]] = {
    f"One prompt of 16 tokens, {len(CLASS_NAMES)} classes, forward and backward": [
        Side("77-token sequences", lambda: TextCase("plain", 1, 16, one_by_one=False), repeats=3),
        Side("cut at the longest name", lambda: TextCase("cut", 1, 16, one_by_one=False), repeats=5),
        Side("packed", lambda: TextCase("packed", 1, 16, one_by_one=False), repeats=15),
    ],
    f"TRIP's batch: 16 prompts of 32 tokens, {len(CLASS_NAMES)} classes, forward and backward": [
        Side("77-token sequences", lambda: TextCase("plain", 16, 32, one_by_one=True), repeats=1, warm_up=False),
        Side("cut at the longest name", lambda: TextCase("cut", 16, 32, one_by_one=True), repeats=1, warm_up=False),
        Side("packed", lambda: TextCase("packed", 16, 32, one_by_one=False), repeats=3),
    ],
    "TRIP's routing of 128 images, for training and for evaluation: 197 tokens of width 768, 4 experts": [
        Side("loop over tokens", lambda: RoutingCase(batched=False, num_images=128), repeats=1, warm_up=False),
        Side("batched", lambda: RoutingCase(batched=True, num_images=128), repeats=15),
    ],
}

NOTES = """Seconds are the median of the repeats, with the least and the greatest; memory is the peak above the loaded
model, the high-water mark of the side's own process. In TRIP's batch the 77-token and the cut side encode one prompt
after the other, each with its own backward pass, as one graph of all would not fit into memory; every prompt is really
run. The 77-token side is open_clip's own text tower, as other code calls it."""


def main() -> None:
    """Runs every comparison and writes one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.text_encoder", description=__doc__)
    parser.add_argument("--output", type=Path, help="also write the table to this Markdown file")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of each side")
    parser.add_argument("--side", nargs=3, metavar=("COMPARISON", "SIDE", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.side:
        _run_side(*arguments.side)
        return
    lines = ["# Text encoder and routing", "", describe_machine(), "", NOTES, ""]
    sys.stdout.write("\n".join(lines) + "\n")
    for index, (title, sides) in enumerate(COMPARISONS.items()):
        table = _compare(index, title, sides, arguments.threads)
        sys.stdout.write("\n".join(table) + "\n")
        lines.extend(table)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        write_text(arguments.output, "\n".join(lines).rstrip() + "\n")


def _compare(index: int, title: str, sides: list[Side], threads: int) -> list[str]:
    """Returns a Markdown table of one comparison; the first side is what the others are measured against."""
    lines = [f"## {title}", "", "| | seconds | least to greatest | repeats | times faster | memory, MB | differs by |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(len(sides)):
            place = [str(index), str(number), folder]
            command = [sys.executable, "-m", "benchmarks.text_encoder", "--threads", str(threads), "--side", *place]
            subprocess.run(command, check=True)
        found = [_read(Path(folder), side.label) for side in sides]
    for side, (measurement, result) in zip(sides, found, strict=True):
        faster = found[0][0].median / measurement.median
        lines.append(_row(side.label, measurement, faster, result, found[0][1]))
    return [*lines, ""]


def _row(label: str, measurement: Measurement, faster: float, result: Result, reference: Result) -> str:
    """Returns a row of the table; `reference` is the result of the first side."""
    seconds = measurement.seconds
    features = _difference(result[0], reference[0])
    gradients = _difference(result[1], reference[1])
    return (
        f"| {label} | {measurement.median:.4g} | {min(seconds):.4g} to {max(seconds):.4g} | {len(seconds)} "
        f"| {faster:.1f} | {measurement.megabytes:.0f} | {features:.1e}, gradients {gradients:.1e} |"
    )


def _run_side(comparison: str, number: str, folder: str) -> None:
    """Measures one side in this process and leaves what was found in the folder."""
    side = list(COMPARISONS.values())[int(comparison)][int(number)]
    function = side.make()
    results: list[Result] = []
    measurement = measure(lambda: results.append(function()), side.repeats, side.warm_up)
    torch.save(results[-1], Path(folder, f"{side.label}.pt"))
    Path(folder, f"{side.label}.json").write_text(json.dumps(measurement.to_dict()), encoding="utf-8")


def _read(folder: Path, label: str) -> tuple[Measurement, Result]:
    values = json.loads((folder / f"{label}.json").read_text(encoding="utf-8"))
    return Measurement(**values), torch.load(folder / f"{label}.pt", weights_only=True)


def _difference(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference, relative to the largest value expected."""
    return float((found - expected).abs().max() / expected.abs().max())


if __name__ == "__main__":
    main()
