"""Whole rounds with data loading, evaluation and aggregation: the first with cold caches, and later ones."""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.in_subprocess import in_subprocess
from benchmarks.steps import BATCH_SIZES, CLASS_NAMES, make_module
from benchmarks.stopwatch import Stopwatch
from benchmarks.synthetic import write_images
from benchmarks.tables import Table, number, percent, seconds_with_spread
from fedvlp.clip import CLIPSpec, load_clip
from fedvlp.data import DomainFolders
from fedvlp.federation import Federation
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.training.options import Runtime

TIMES = ("reading and preparing", "round 1", "later rounds", "least to greatest", "rounds", "an epoch", "evaluation")
HEADER = ("", *TIMES, "text tower and optimizer", "elsewhere")
PROCESSES = ("processes", "an epoch", "least to greatest", "rounds", "times faster", "evaluation")

NOTES = """Generated JPEG files of 256 x 256 pixels in four domains, one held out, with three clients. *Cold* starts
with empty caches; *warm* repeats the run with the files that the first run left on disk. Times are in seconds. A round
trains each client for an epoch, averages, evaluates every split, and does everything else that the command line does
(checkpoints, tables, plots). *An epoch* (training and averaging) and *evaluation* are medians of later rounds. The last
two columns are shares of the later rounds: in text towers, forward and backward, and optimizers; and outside of both.
On a GPU the stopwatch waits for each of these passes, which makes rounds slightly slower than in an ordinary run.

Two processes each train two of four clients, with half of the threads or one GPU each; only the first one evaluates."""


@dataclass(frozen=True)
class RunResult:
    """Durations of a run in seconds.

    Attributes:
        preparing: Before round 1.
        rounds: Each round.
        training: The part of each round before evaluation.
        busy: Time in text towers and optimizers after round 1.
    """

    preparing: float
    rounds: list[float]
    training: list[float]
    busy: float


class Marks(FederationCallback):
    """Callback that records the start of round 1, and the stopwatch at its end."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self.stopwatch = stopwatch
        self.began = 0.0
        self.after_first = 0.0

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Record the time."""
        self.began = time.perf_counter()

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Record the stopwatch, once."""
        if row["round"] == 1:
            self.after_first = sum(self.stopwatch.seconds.values())


def tables(quick: bool, device: str) -> Iterator[Table]:
    """Make a table of all methods, and a table of one process and two."""
    spec = CLIPSpec("fedvlp-tiny") if quick else CLIPSpec("ViT-B-16", "random")
    names = CLASS_NAMES[7]
    images = 28 if quick else 42
    rounds = 3 if quick else 5
    rows = []
    for method in ("TRIP", "PromptFL")[: 1 if quick else 2]:
        with tempfile.TemporaryDirectory() as folder:
            write_images(Path(folder) / "images", 4, names, images)
            for label in ("cold", "warm"):
                case: dict[str, Any] = {"method": method, "spec": spec, "names": names, "folder": folder}
                result = in_subprocess(measure_run, **case, rounds=rounds, device=device)
                rows.append(_row(f"{method}, {label}", result))
    yield Table(f"round: {4 * images} images, {len(names)} classes, {spec.name}", HEADER, rows)
    yield _processes(spec, names, images, rounds, device)


def measure_run(
    method: str, spec: CLIPSpec, names: list[str], folder: str, rounds: int, device: str = "cpu"
) -> RunResult:
    """Measure a run, with caches below the folder."""
    module = make_module(method, load_clip(spec), names)
    module.context = None
    stopwatch = Stopwatch(module, device)
    marks = Marks(stopwatch)
    options: dict[str, Any] = {"held_out": "domain 3", "cache_dir": f"{folder}/cache"}
    data = DomainFolders(root=f"{folder}/images", batch_size=BATCH_SIZES[method], **options)
    federation = Federation(
        rounds,
        accelerator=device,
        runtime=Runtime(num_threads=torch.get_num_threads()),
        callbacks=[marks],
        default_root_dir=f"{folder}/runs",
        enable_progress_bar=False,
    )
    started = time.perf_counter()
    federation.fit(module, data)
    busy = sum(stopwatch.seconds.values()) - marks.after_first
    history = federation.run_state.history
    taken = [float(row["seconds"]) for row in history]
    training = [float(row["train_seconds"]) for row in history]
    return RunResult(marks.began - started, taken, training, busy)


def _row(label: str, result: RunResult) -> list[str]:
    """Format a row of the table."""
    later = result.rounds[1:]
    training = result.training[1:]
    share = result.busy / sum(later)
    trained = statistics.median(training)
    evaluated = statistics.median(whole - part for whole, part in zip(later, training, strict=True))
    start = [label, number(result.preparing), number(result.rounds[0]), *seconds_with_spread(later)]
    return [*start, number(trained), number(evaluated), percent(share), percent(1 - share)]


def _processes(spec: CLIPSpec, names: list[str], images: int, rounds: int, device: str) -> Table:
    """Measure the rounds of TRIP in one process and in two."""
    title = f"round: TRIP in one process and in two, {5 * images} images, four clients, {spec.name}"
    if device == "cuda" and torch.cuda.device_count() < 2:
        return Table(title, PROCESSES, [], "There is one GPU here.")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder) / "images", 5, names, images)
        alone = 0.0
        for count in (1, 2):
            training, evaluation = _run_processes(count, spec, Path(folder), rounds, device)
            epoch = statistics.median(training)
            alone = alone or epoch
            numbers = [f"{alone / epoch:.2f}", number(statistics.median(evaluation))]
            rows.append([f"{count}", *seconds_with_spread(training), *numbers])
    return Table(title, PROCESSES, rows)


def _run_processes(
    count: int, spec: CLIPSpec, folder: Path, rounds: int, device: str
) -> tuple[list[float], list[float]]:
    """Measure training and evaluation of later rounds in seconds, with processes started by the command line."""
    runs = folder / f"{count}"
    options = {
        "model.clip.name": spec.name,
        "model.clip.pretrained": spec.pretrained,
        "data.root": folder / "images",
        "data.held_out": "domain 4",
        "data.cache_dir": folder / "cache",
        "trainer.rounds": rounds,
        "trainer.accelerator": device,
        "trainer.devices": count,
        "trainer.strategy": "ddp",
        "trainer.default_root_dir": runs,
        "trainer.runtime.num_threads": max(torch.get_num_threads() // count, 1),
    }
    command = [sys.executable, "-m", "fedvlp", "fit", "--config", "trip", "--config", "data/folders"]
    command += [f"--{name}={value}" for name, value in options.items()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (metrics,) = runs.rglob("metrics.csv")
    with metrics.open(encoding="utf-8", newline="") as file:
        later = list(csv.DictReader(file))[1:]
    training = [float(row["train_seconds"]) for row in later]
    return training, [float(row["seconds"]) - float(row["train_seconds"]) for row in later]
