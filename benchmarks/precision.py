"""Towers in float32 and in bfloat16, alternating in one process: local steps, prepared images, memory, chunks."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.hardware_limits import matrix_rate
from benchmarks.in_subprocess import in_subprocess
from benchmarks.measure import SHARES, clock, peak_megabytes, reset_peak, resident_megabytes
from benchmarks.operations import image_tower, patches_work
from benchmarks.steps import BATCH_SIZES, CLASS_NAMES, Step, least_operations, make_batch, make_module
from benchmarks.synthetic import write_images
from benchmarks.tables import Table, number, percent
from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder, load_clip
from fedvlp.data.files.images import FolderImages
from fedvlp.data.loaders import ImageDataset, encode
from fedvlp.training.setup import choose_precision
from fedvlp.utils.memory import reuse_freed_memory

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
RATES = ("GFLOP/s float32", "GFLOP/s bfloat16", "share of float32", "share of bfloat16")
STEPS = ("", "float32, s", "bfloat16, s", "times faster", *RATES)
PREPARED = ("", "float32, images/s", "bfloat16, images/s", "times faster", *RATES)
MEMORY = ("", "float32, MB", "bfloat16, MB")
BUDGETS = {"cpu": (24, 48, 96, 192, 384), "cuda": (96, 192, 384, 768, 1536)}
PAIRS = {"TRIP": (7, 65, 345), "PromptFL": (7, 65, 345), "DiPrompT": (7, 65), "PLAN": (7,), "ADAPT": (7,)}

NOTES = """Both sides alternate in one process, so that other load of the machine affects both, and the median of each
counts. The rates are measured with a large matrix product of each type, before and after. A share is the time of the
minimum operations of a step at that rate, relative to the measured time. Steps, batches and classes are the same as in
`local_step`, for ViT-B/16 with random weights."""


@dataclass
class Sides:
    """Durations of both sides, and the rates of their types.

    Attributes:
        seconds: Durations by name of the type.
        rates: Operations a second of large products, by the type's name.
    """

    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in TYPES})
    rates: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TYPES, 0.0))

    def median(self, name: str) -> float:
        """Compute the median duration of a side."""
        return statistics.median(self.seconds[name])

    @property
    def gain(self) -> float:
        """Speed-up by bfloat16."""
        return self.median("float32") / self.median("bfloat16")

    def cells(self, operations: float) -> list[str]:
        """Format the speed-up, both rates, and the share of its rate that each side reaches."""
        rates = [number(self.rates[name] / 1e9) for name in TYPES]
        shares = [percent(operations / self.rates[name] / self.median(name)) for name in TYPES]
        return [f"{self.gain:.2f}", *rates, *shares]


def tables(quick: bool, device: str) -> Iterator[Table]:
    """Make the tables of steps, prepared images, memory and chunks."""
    spec = CLIPSpec("fedvlp-tiny") if quick else CLIPSpec("ViT-B-16", "random")
    common: dict[str, Any] = {"spec": spec, "device": device}
    yield _steps(common, quick)
    yield _preparation(common, quick)
    yield _memory(common, quick)
    yield _budgets(common, quick)


@reuse_freed_memory()
def measure_step(method: str, num_classes: int, spec: CLIPSpec, device: str, quick: bool) -> tuple[Sides, float]:
    """Measure the steps of a method, and count the minimum operations of a step."""
    steps: dict[str, Callable[[], object]] = {}
    for name, clip in _both(spec).items():
        module = make_module(method, clip, CLASS_NAMES[num_classes], device=device)
        step = Step(module, make_batch(module, BATCH_SIZES[method]))
        steps[name] = partial(_in_context, name, device, step)
    least = least_operations(method, load_clip(spec), CLASS_NAMES[num_classes], BATCH_SIZES[method])
    return in_turn(steps, 1.0 if quick else 12.0, device), least


@reuse_freed_memory()
def measure_preparation(spec: CLIPSpec, device: str, images: int, quick: bool) -> tuple[Sides, float]:
    """Measure reading and encoding of files, and count the operations."""
    clips = _both(spec)
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), 1, ["one", "two"], images)
        files = sorted(Path(folder).rglob("*.jpg"))
        shown = FolderImages(files, [file.name for file in files], [0] * len(files))
        calls: dict[str, Callable[[], object]] = {}
        for name, clip in clips.items():
            dataset = ImageDataset([(shown, np.arange(images))], clip.preprocess)
            encoding = partial(_encode, dataset, clip.to(device), device)
            calls[name] = partial(_in_context, name, device, encoding)
        sides = in_turn(calls, 1.0 if quick else 30.0, device)
    clip = clips["float32"]
    tokens = int(clip.num_image_tokens or 0)
    work = image_tower(clip).work(tokens, tokens**2, tokens, tokens**2, 1).forward + patches_work(clip)
    return sides, images * work


@reuse_freed_memory()
def measure_memory(method: str, num_classes: int, spec: CLIPSpec, device: str, name: str) -> float:
    """Measure the peak memory of loading CLIP and two steps, in MB."""
    before = resident_megabytes(device)
    clip = load_clip(spec)
    clip.cast_towers(TYPES[name])
    module = make_module(method, clip, CLASS_NAMES[num_classes], device=device)
    step = Step(module, make_batch(module, BATCH_SIZES[method]))
    reset_peak(device)  # both sides briefly hold float32 weights
    for _ in range(2):
        _in_context(name, device, step)
    return peak_megabytes(device) - before


@reuse_freed_memory()
def measure_budget(num_classes: int, budget: int, spec: CLIPSpec, device: str, quick: bool) -> Sides:
    """Measure the text tower, forward and backward, with chunks of this many tokens."""
    calls: dict[str, Callable[[], object]] = {}
    for name, clip in _both(spec).items():
        encoder = PromptedTextEncoder(clip, CLASS_NAMES[num_classes], prompt_length=16, token_budget=budget)
        encoder.to(device)
        prompt = torch.nn.Parameter(encoder.initial_prompt().to(device))
        calls[name] = partial(_in_context, name, device, partial(_backward, encoder, prompt))
    return in_turn(calls, 0.5 if quick else 4.0, device)


def in_turn(calls: Mapping[str, Callable[[], object]], seconds: float, device: str) -> Sides:
    """Measure alternating calls for about this long, at least three each, after one warm-up."""
    sides = Sides()
    _measure_rates(sides, device)
    for call in calls.values():
        call()
    began = clock(device)
    while len(sides.seconds["float32"]) < 3 or clock(device) - began < seconds * SHARES[device]:
        for name, call in calls.items():
            started = clock(device)
            call()
            sides.seconds[name].append(clock(device) - started)
    _measure_rates(sides, device)
    return sides


def _measure_rates(sides: Sides, device: str) -> None:
    for name, dtype in TYPES.items():
        sides.rates[name] = max(sides.rates[name], matrix_rate(dtype=dtype, device=device))


def _both(spec: CLIPSpec) -> dict[str, CLIP]:
    """Make the CLIP of each side."""
    clips = {}
    for name, dtype in TYPES.items():
        clips[name] = load_clip(spec)
        clips[name].cast_towers(dtype)
    return clips


def _in_context(name: str, device: str, call: Callable[[], object]) -> None:
    """Call a function in the context that a run uses."""
    with torch.autocast(device, torch.bfloat16, enabled=name == "bfloat16"):
        call()


def _encode(dataset: ImageDataset, clip: CLIP, device: str) -> None:
    encode(dataset, lambda images: {"features": clip.encode_image(images)}, torch.device(device), num_workers=0)


def _backward(encoder: PromptedTextEncoder, prompt: torch.nn.Parameter) -> None:
    encoder(prompt).sum().backward()


def _steps(common: dict[str, Any], quick: bool) -> Table:
    rows = []
    for method, counts in PAIRS.items():
        for num_classes in counts[:1] if quick else counts:
            case = {**common, "method": method, "num_classes": num_classes, "quick": quick}
            sides, least = in_subprocess(measure_step, **case)
            seconds = [number(sides.median(name)) for name in TYPES]
            rows.append([f"{method}, {num_classes} classes", *seconds, *sides.cells(least)])
    chosen, why = choose_precision("auto", common["device"])
    notes = f"The precision `auto` is `{chosen}` here: {why}."
    return Table(f"precision: a local step, {common['spec'].name}", STEPS, rows, notes)


def _preparation(common: dict[str, Any], quick: bool) -> Table:
    images = 32 if quick else 96
    sides, operations = in_subprocess(measure_preparation, **common, images=images, quick=quick)
    rates = [number(images / sides.median(name)) for name in TYPES]
    row = [f"{images} JPEG files, 256 x 256 pixels", *rates, *sides.cells(operations)]
    return Table(f"precision: images read and encoded, {common['spec'].name}", PREPARED, [row])


def _memory(common: dict[str, Any], quick: bool) -> Table:
    rows = []
    for method, num_classes in [("PromptFL", 7)] if quick else [("PromptFL", 65), ("TRIP", 65), ("PLAN", 7)]:
        case = {**common, "method": method, "num_classes": num_classes}
        peaks = [number(in_subprocess(measure_memory, **case, name=name)) for name in TYPES]
        rows.append([f"{method}, {num_classes} classes", *peaks])
    return Table(f"precision: peak memory of CLIP and of steps, {common['spec'].name}", MEMORY, rows)


def _budgets(common: dict[str, Any], quick: bool) -> Table:
    """Measure chunks of all sizes, relative to the default size."""
    rows = []
    budgets = BUDGETS[common["device"]]
    for num_classes in [7] if quick else sorted(CLASS_NAMES):
        found = {}
        for budget in budgets:
            case = {**common, "num_classes": num_classes, "budget": budget, "quick": quick}
            found[budget] = in_subprocess(measure_budget, **case)
        for name in TYPES:
            seconds = [number(found[budget].median(name)) for budget in budgets]
            rows.append([f"{num_classes} classes, {name}", *seconds])
    header = ("seconds", *[f"{budget} tokens" for budget in budgets])
    return Table(f"precision: the text tower by tokens in a chunk (96 in use), {common['spec'].name}", header, rows)
