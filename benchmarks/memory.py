"""Memory over rounds with many clients, which must stay constant."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.figures import plot_over_rounds
from benchmarks.in_subprocess import in_subprocess
from benchmarks.measure import peak_megabytes, reset_peak, resident_megabytes
from benchmarks.overhead import PROMPTS
from benchmarks.steps import CLASS_NAMES, make_module
from benchmarks.synthetic import IdleMethod, NoImages, Points
from benchmarks.tables import Table, number
from fedvlp.clip import CLIP, load_clip
from fedvlp.core.module import FederatedModule
from fedvlp.federation import Federation
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.training.options import Clients, Runtime

HEADER = (
    "",
    "rounds",
    "before",
    "after 1",
    "half-way",
    "last",
    "last less half-way",
    "peak",
    "states",
    "times",
    "seconds",
)

NOTES = """Resident memory of the process after each round, with each run in a separate process with the tiny CLIP.
DiPrompT trains on generated features, 16 images per client, one step per round, and writes all files (checkpoints,
tables, plots) after every round. The other runs train nothing, and all clients take part in every round. *Keeping*
means that each client keeps personal prompts of TRIP's size between rounds, and *on disk* that files store them
(`personal_on_disk`). The floor is the size of all client states in memory, both sent and personal (for DiPrompT the
small states of five clients per round). *Times* is the peak above the start, relative to the floor."""


@dataclass(frozen=True)
class Run:
    """A run with monitored memory.

    Attributes:
        label: Name of the run.
        clients: Number of clients.
        cohort: Number of clients per round; None for all.
        rounds: Number of rounds.
        kind: ``diprompt``, ``overhead``, ``keeping`` or ``disk``.
    """

    label: str
    clients: int
    cohort: int | None
    rounds: int
    kind: str


@dataclass(frozen=True)
class RunMemory:
    """Memory and time of a run.

    Attributes:
        megabytes: Before round 1 and after each round.
        peak: The most within rounds.
        seconds: Duration of all rounds.
    """

    megabytes: list[float]
    peak: float
    seconds: float


class MemoryWatch(FederationCallback):
    """Callback that records the memory after each round."""

    def __init__(self) -> None:
        self.megabytes: list[float] = []

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Record the memory before round 1."""
        self.megabytes.append(resident_megabytes())

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Record the memory."""
        self.megabytes.append(resident_megabytes())


def tables(quick: bool, figures: Path | None = None) -> Iterator[Table]:
    """Make one table, and plot it as `memory.png` if there is a folder for figures."""
    runs = _runs(quick)
    found = {run.label: in_subprocess(measure_memory, run=run) for run in runs}
    if figures is not None:
        plot_over_rounds({label: result.megabytes for label, result in found.items()}, figures / "memory.png")
    notes = "" if figures is None else "![Memory over rounds](memory.png)"
    yield Table("memory: resident MB over rounds", HEADER, [_row(run, found[run.label]) for run in runs], notes)


def _runs(quick: bool) -> list[Run]:
    trained = 200 if quick else 2000
    idle = 100 if quick else 10000
    return [
        Run(f"DiPrompT, 5 of {trained} clients", trained, 5, 8 if quick else 50, "diprompt"),
        Run(f"loop alone, {idle} clients", idle, None, 8 if quick else 10, "overhead"),
        Run(f"loop alone, {idle} clients keeping prompts", idle, None, 4, "keeping"),
        Run(f"loop alone, {idle} clients keeping prompts on disk", idle, None, 3, "disk"),
    ]


def measure_memory(run: Run) -> RunMemory:
    """Measure the memory over the rounds of a run in this process."""
    watch = MemoryWatch()
    module, data = _module_and_data(run, load_clip("fedvlp-tiny"))
    with TemporaryDirectory() as folder:
        federation = Federation(
            run.rounds,
            accelerator="cpu",
            callbacks=[watch],
            default_root_dir=folder,
            enable_progress_bar=False,
            runtime=Runtime(num_threads=torch.get_num_threads(), default_callbacks=run.kind == "diprompt"),
            clients=Clients(cohort_size=run.cohort, personal_on_disk=run.kind == "disk"),
        )
        reset_peak()
        started = time.perf_counter()
        federation.fit(module, data)
        return RunMemory(watch.megabytes, peak_megabytes(), time.perf_counter() - started)


def _module_and_data(run: Run, clip: CLIP) -> tuple[FederatedModule, NoImages]:
    if run.kind != "diprompt":
        kept = PROMPTS if run.kind in ("keeping", "disk") else None
        return IdleMethod(clip, PROMPTS, kept), NoImages(run.clients)
    module = make_module("DiPrompT", clip, CLASS_NAMES[7])
    module.context = None
    return module, Points(run.clients, class_names=CLASS_NAMES[7], width=clip.embed_dim)


def _row(run: Run, result: RunMemory) -> list[str]:
    """Format a row of the table."""
    before = result.megabytes[0]
    half = result.megabytes[run.rounds // 2]
    last = result.megabytes[run.rounds]
    # During a round, old and new personal prompts are in memory at the same time.
    copies = {"overhead": 1, "keeping": 2, "disk": 1}.get(run.kind, 0)
    states = copies * run.clients * 4 * torch.Size(PROMPTS).numel() / 2**20
    times = number((result.peak - before) / states) if states else "-"
    values = [number(value) for value in (before, result.megabytes[1], half, last, last - half, result.peak)]
    return [run.label, str(run.rounds), *values, number(states) if states else "-", times, number(result.seconds)]
