"""One local step of each method: the released code, the released code with cut sequences, and fedvlp."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.hardware_limits import matrix_rate
from benchmarks.in_subprocess import in_subprocess
from benchmarks.measure import Measurement, measure_for
from benchmarks.reference import Call, Reference, train
from benchmarks.reference_steps import REFERENCES
from benchmarks.steps import (
    BATCH_SIZES,
    CLASS_NAMES,
    Step,
    StepBatch,
    least_operations,
    make_batch,
    make_module,
    reference_operations,
)
from benchmarks.tables import Table, number, percent, seconds_with_spread
from fedvlp.clip import CLIPSpec, load_clip
from fedvlp.utils.memory import reuse_freed_memory

SIDES = {"reference": "reference, 77 tokens", "cut": "cut at the longest name", "ours": "ours"}
HEADER = ("", "seconds", "least to greatest", "repeats", "times faster", "GFLOP", "of the rate", "of the floor", "MB")

NOTES = """*Reference* is the papers' released code: one text call of 77-token sequences per prompt (TRIP: per image),
both image towers on each batch, and no cache. *Cut* has sequences as long as the longest class name. *Ours* has image
features, routes and teachers prepared, as in the library from the second round on. GFLOP counts the matrix products of
a side, and for ours the minimum of the step. *Of the rate* is GFLOP per second relative to a large float32 product,
measured on the same device with the same threads, in the same process, before and after. *Of the floor* is the time of
the minimum operations at that rate, relative to the measured time. Memory is the peak above the loaded model and its
batch. A side marked with *measured* was measured in parts, each multiplied by its number of occurrences; losses and
optimizer are not included, and its memory is the maximum over parts. All sides keep the memory that they free."""


@dataclass(frozen=True)
class SideResult:
    """Result of one side of a comparison.

    Attributes:
        seconds: Duration of a whole step in each repeat.
        megabytes: Peak memory.
        operations: Number of operations.
        least: Minimum number of operations of the step.
        rate: Operations a second of a large matrix product.
        parts: Parts that were measured and extrapolated; empty if the whole step was measured.
    """

    seconds: list[float]
    megabytes: float
    operations: float
    least: float
    rate: float
    parts: str


def tables(quick: bool, device: str) -> Iterator[Table]:
    """Make a table for each method and number of classes."""
    spec = CLIPSpec("fedvlp-tiny") if quick else CLIPSpec("ViT-B-16", "random")
    for method, batch_size in BATCH_SIZES.items():
        for num_classes in [7] if quick else sorted(CLASS_NAMES):
            case: dict[str, Any] = {"method": method, "num_classes": num_classes, "spec": spec, "quick": quick}
            case["device"] = device
            results = {side: in_subprocess(measure_side, side=side, **case) for side in SIDES}
            title = f"local_step: {method}, {num_classes} classes, batch {batch_size}, {spec.name}"
            yield Table(title, HEADER, _rows(results), _sentence(results))


@reuse_freed_memory()
def measure_side(method: str, num_classes: int, side: str, spec: CLIPSpec, quick: bool, device: str) -> SideResult:
    """Measure one side in this process."""
    clip = load_clip(spec)
    batch_size = BATCH_SIZES[method]
    module = make_module(method, clip, CLASS_NAMES[num_classes], device=device)
    batch = make_batch(module, batch_size)
    least = least_operations(method, clip, CLASS_NAMES[num_classes], batch_size)
    seconds = 1.0 if quick else 6.0
    operations = least
    parts = ""
    rate_before = matrix_rate(device=device)
    if side == "ours":
        found = measure_for(Step(module, batch), seconds, least=2, warm_up=True, device=device)
    else:
        reference = REFERENCES[method](module, side == "cut")
        operations = reference_operations(method, clip, num_classes, reference.texts.length, batch_size)
        found, parts = _measure_reference(reference, batch, seconds, device)
    rate = max(rate_before, matrix_rate(device=device))
    return SideResult(found.seconds, found.megabytes, operations, least, rate, parts)


def _measure_reference(reference: Reference, batch: StepBatch, seconds: float, device: str) -> tuple[Measurement, str]:
    """Measure a reference step; if it is too large, measure parts of it and describe them."""
    if len(reference.texts) == min(CLASS_NAMES):
        return _measure_calls([Call("", lambda: train(reference, batch))], seconds, device), ""
    calls = reference.calls(batch)
    return _measure_calls(calls, seconds, device), ", ".join(f"{call.label} x {call.times:g}" for call in calls)


def _measure_calls(calls: list[Call], seconds: float, device: str) -> Measurement:
    """Compute the duration of a step from its calls; describe the part that was repeated least."""
    found = [measure_for(call.run, seconds, device=device) for call in calls]
    repeats = min(len(one.seconds) for one in found)
    took = []
    for index in range(repeats):
        took.append(sum(call.times * one.seconds[index] for call, one in zip(calls, found, strict=True)))
    return Measurement(took, max(one.megabytes for one in found))


def _rows(results: dict[str, SideResult]) -> list[list[str]]:
    first = statistics.median(results["reference"].seconds)
    rows = []
    for side, result in results.items():
        median = statistics.median(result.seconds)
        label = SIDES[side] + (f"; measured: {result.parts}" if result.parts else "")
        shares = [percent(work / result.rate / median) for work in (result.operations, result.least)]
        spread = seconds_with_spread(result.seconds)
        numbers = [number(first / median), number(result.operations / 1e9), *shares, number(result.megabytes)]
        rows.append([label, *spread, *numbers])
    return rows


def _sentence(results: dict[str, SideResult]) -> str:
    """Describe the speed-up that the count of operations allows."""
    ours = results["ours"]
    reference = results["reference"]
    rates = sorted(result.rate / 1e9 for result in results.values())
    return (
        f"Large products: {rates[0]:.0f} to {rates[-1]:.0f} GFLOP a second. The floor is {ours.least / 1e9:.4g} GFLOP, "
        f"{number(ours.least / ours.rate)} s; the reference has {reference.operations / ours.least:.3g} times as many."
    )
