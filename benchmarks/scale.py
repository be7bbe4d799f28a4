"""Time and memory against the numbers of clients, classes, domains, images and rounds, with slopes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.curve import Curve
from benchmarks.figures import plot
from benchmarks.hardware_limits import matrix_rate
from benchmarks.in_subprocess import in_subprocess
from benchmarks.measure import Measurement, measure_for
from benchmarks.overhead import PROMPTS, measure_loop
from benchmarks.round import measure_run
from benchmarks.steps import CLASS_NAMES, Step, least_operations, make_batch, make_module
from benchmarks.synthetic import write_images
from benchmarks.tables import Table, number, percent
from fedvlp.clip import CLIPSpec, load_clip

NOTES = """Each size runs in a separate process. *Clients*: a round of the loop without training, with TRIP's prompts.
*Classes*: PromptFL's local step. *Domains*: DiPrompT's local step with 20 classes and the tiny CLIP. *Images*: reading,
preparing and one round of TRIP with the tiny CLIP, by the total number of images. *Rounds*: a run of four clients
without training, with all files. A slope is the slope of the line through the logarithms of the last three sizes; 1 is
linear. Memory is the peak above the start, with a slope if it grows by more than 5 MB. The floor belongs to the largest
size: the minimum operations at the measured rate, for classes and domains."""


def tables(quick: bool, figures: Path | None = None) -> Iterator[Table]:
    """Make one table, and plot it as `scale.png` if there is a folder for figures."""
    curves = []
    for axis, (measure, sizes, fewer) in AXES.items():
        curves.append(_curve(axis, measure, fewer if quick else sizes, quick))
    if figures is not None:
        plot(curves, figures / "scale.png")
    columns = max(len(curve.sizes) for curve in curves)
    header = ("", *(f"size {index + 1}" for index in range(columns)), "slope", "of the floor")
    rows: list[list[str]] = []
    for curve in curves:
        rows.extend(_rows(curve, columns))
    notes = "" if figures is None else "![Time and memory against each number](scale.png)"
    yield Table("scale", header, rows, notes)


def clients(size: int, quick: bool) -> Point:
    """Measure a round of this many clients without batches."""
    found = measure_loop(size, rounds=4, shape=PROMPTS, files=False).found
    return found, None


def classes(size: int, quick: bool) -> Point:
    """Measure the step of PromptFL."""
    spec = CLIPSpec("fedvlp-tiny") if quick else CLIPSpec("ViT-B-16", "random")
    return _step("PromptFL", spec, CLASS_NAMES[345][:size], 32)


def domains(size: int, quick: bool) -> Point:
    """Measure the step of DiPrompT."""
    names = [f"domain {index}" for index in range(size)]
    return _step("DiPrompT", CLIPSpec("fedvlp-tiny"), CLASS_NAMES[65][:20], 16, names)


def images(size: int, quick: bool) -> Point:
    """Measure reading and preparing images, and a round."""
    names = CLASS_NAMES[7]
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder) / "images", 4, names, size // 4, size=64)

        def run() -> None:
            result = measure_run("TRIP", CLIPSpec("fedvlp-tiny"), names, folder, rounds=1)
            seconds.append(result.preparing + result.rounds[0])

        found = measure_for(run, 0.0)
    return Measurement(seconds, found.megabytes), None


def rounds(size: int, quick: bool) -> Point:
    """Measure this many rounds with all files."""
    found = measure_loop(4, rounds=size + 1, shape=PROMPTS, files=True).found
    return Measurement([sum(found.seconds)], found.megabytes), None


Point = tuple[Measurement, "float | None"]
AXES: dict[str, tuple[Callable[[int, bool], Point], Sequence[int], Sequence[int]]] = {
    "clients": (clients, (100, 300, 1000, 3000, 10000), (10, 30, 100)),
    "classes": (classes, (22, 43, 86, 172, 345), (22, 43, 86)),
    "domains": (domains, (2, 4, 8, 16, 32), (2, 4, 8)),
    "images": (images, (140, 280, 560, 1120, 2240), (112, 224)),
    "rounds": (rounds, (25, 50, 100, 200, 400), (5, 10, 20)),
}


def _step(method: str, spec: CLIPSpec, names: list[str], batch_size: int, of: Sequence[str] = ("a", "b", "c")) -> Point:
    """Measure a local step and its share of the floor."""
    module = make_module(method, load_clip(spec), names, of)
    found = measure_for(Step(module, make_batch(module, batch_size)), 4.0, least=2)
    least = least_operations(method, load_clip(spec), names, batch_size, of)
    return found, least / matrix_rate() / found.median


def _curve(axis: str, measure: Callable[[int, bool], Point], sizes: Sequence[int], quick: bool) -> Curve:
    """Measure an axis."""
    points = [in_subprocess(measure, size=size, quick=quick) for size in sizes]
    seconds = [found.median for found, _ in points]
    megabytes = [found.megabytes for found, _ in points]
    return Curve(axis, sizes, seconds, megabytes, points[-1][1])


def _rows(curve: Curve, columns: int) -> list[list[str]]:
    """Format the three rows of an axis, padded to this many sizes."""
    gap = [""] * (columns - len(curve.sizes))
    floor = "-" if curve.floor is None else percent(curve.floor)
    memory = "-" if curve.memory_slope is None else f"{curve.memory_slope:.2f}"
    return [
        [curve.axis, *(f"{size}" for size in curve.sizes), *gap, "", ""],
        ["seconds", *map(number, curve.seconds), *gap, f"{curve.time_slope:.2f}", floor],
        ["MB", *map(number, curve.megabytes), *gap, memory, ""],
    ]
