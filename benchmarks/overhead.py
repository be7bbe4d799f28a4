"""Cost of the loop per round and cost of averaging, for few and many clients, and small and large states."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.hardware_limits import bandwidth
from benchmarks.in_subprocess import in_subprocess
from benchmarks.measure import Measurement, measure_for
from benchmarks.synthetic import IdleMethod, NoImages
from benchmarks.tables import Table, number, percent, seconds_with_spread
from fedvlp.clip import load_clip
from fedvlp.core.state import Client, ClientUpdate, ServerState, State
from fedvlp.core.strategies import FedAvg
from fedvlp.federation import Federation
from fedvlp.training.options import Runtime, Server

PROMPTS = (4, 32, 512)  # TRIP's, 65,536 numbers
LARGE = (25, 1024, 1024)  # 100 MB

CHECKS_HEADER = ("", "ms a round, checked", "ms a round, unchecked", "ratio", "least to greatest", "pairs")

NOTES = """No client trains: clients have no batches, and every client takes part in every round. A state is TRIP's
prompts (65,536 parameters, 0.25 MB) or 100 MB. *With files* includes everything else that the command line does:
checkpoints, tables, plots and prints of every round. The floor is the number of bytes divided by the bandwidth of a
copy, measured in the same process. For the loop, each client's state is copied in and out and read once (5 times its
bytes); for averaging it is read once. Data that fits into the processor's caches (under 100 MB in all) has no such
floor. The plain average makes a new tensor for each client: `mean = mean + weight * state`. *All checks* are names,
shapes, types, finite values and weights, and with a bound the norm of each client's change. The bound reads every
upload, while finiteness follows from the mean. Rounds with and without checks alternate in one process, and the ratio
is the median over pairs."""


@dataclass(frozen=True)
class LoopResult:
    """Result of rounds of clients without batches.

    Attributes:
        found: Seconds of each round but the first, and peak memory.
        bandwidth: Bytes a second of a copy, read and written.
    """

    found: Measurement
    bandwidth: float


def tables(quick: bool, figures: Path | None = None) -> Iterator[Table]:
    """Make a table of the loop and a table of averaging."""
    counts = {4: 40, 100: 20} if quick else {4: 60, 100: 30, 1000: 8, 10000: 4}
    cases = [(count, rounds, PROMPTS) for count, rounds in counts.items()]
    cases += [] if quick else [(4, 4, LARGE), (10, 4, LARGE)]
    columns = ("least to greatest", "rounds", "microseconds a client", "floor, ms", "of the floor", "MB")
    loop: list[list[str]] = []
    for count, rounds, shape in cases:
        loop.extend(_loop_rows(count, rounds, shape))
    yield Table("overhead: the loop's own cost", ("", "ms a round", *columns), loop)
    pairs = {4: 40, 100: 8} if quick else {4: 80, 100: 20, 1000: 6}
    checks = [_check_row(count, pairs[count], bounded) for count, bounded in product(pairs, (False, True))]
    yield Table("overhead: all checks of updates, and none", CHECKS_HEADER, checks)
    averages: list[list[str]] = []
    for count, _, shape in cases:
        averages.extend(_average_rows(count, shape, 1.0 if quick else 4.0))
    yield Table("aggregation: the average of all clients", ("", "ms", *columns), averages)


def _loop_rows(count: int, rounds: int, shape: tuple[int, ...]) -> Iterator[list[str]]:
    """Measure the rows for a number of clients, without files and, for small states, with files."""
    for files in [False, True] if count <= 1000 and shape == PROMPTS else [False]:
        result = in_subprocess(measure_loop, count=count, rounds=rounds + 1, shape=shape, files=files)
        label = f"{count} clients, {_size(shape)}{', with files' if files else ''}"
        yield _row(label, result, count, 5 * _bytes(shape))


def _average_rows(count: int, shape: tuple[int, ...], seconds: float) -> Iterator[list[str]]:
    """Measure the rows for a number of clients, one for each way to average."""
    for label, average in AVERAGES.items():
        result = in_subprocess(measure_average, count=count, shape=shape, average=average, seconds=seconds)
        yield _row(f"{count} clients, {_size(shape)}, {label}", result, count, _bytes(shape))


def measure_loop(count: int, rounds: int, shape: tuple[int, ...], files: bool) -> LoopResult:
    """Measure rounds with this many clients in this process, without the first round."""
    module = IdleMethod(load_clip("fedvlp-tiny"), shape)
    data = NoImages(count)
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(
            rounds,
            accelerator="cpu",
            default_root_dir=folder,
            enable_progress_bar=False,
            runtime=Runtime(num_threads=torch.get_num_threads(), default_callbacks=files),
        )
        with redirect_stdout(StringIO()):  # for example, that there is no validation split
            found = measure_for(lambda: federation.fit(module, data), 0.0)
    seconds = [float(row["seconds"]) for row in federation.run_state.history[1:]]
    return LoopResult(Measurement(seconds, found.megabytes), bandwidth())


@dataclass(frozen=True)
class ChecksResult:
    """Result of rounds with and without checks of updates, in turn.

    Attributes:
        checked: Seconds of each fit's fastest round.
        unchecked: The same without checks.
    """

    checked: list[float]
    unchecked: list[float]


def _check_row(count: int, pairs: int, is_bounded: bool) -> list[str]:
    """Measure a row of the table of checks, in milliseconds."""
    result = in_subprocess(measure_checks, count=count, pairs=pairs, max_norm=1e30 if is_bounded else None)
    ratios = [checked / unchecked for checked, unchecked in zip(result.checked, result.unchecked, strict=True)]
    times = [number(1000 * statistics.median(seconds)) for seconds in (result.checked, result.unchecked)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    bound = ", with a bound" if is_bounded else ""
    return [f"{count} clients, {_size(PROMPTS)}{bound}", *times, f"{statistics.median(ratios):.2f}", spread, str(pairs)]


def measure_checks(count: int, pairs: int, max_norm: float | None) -> ChecksResult:
    """Measure rounds of this many clients in this process, alternately with and without checks."""
    module = IdleMethod(load_clip("fedvlp-tiny"), PROMPTS)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs + 1):
        for is_checked in (True, False) if pair % 2 else (False, True):
            fastest = _fastest_round(module, count, is_checked, max_norm)
            if pair:  # warm-up
                seconds[is_checked].append(fastest)
    return ChecksResult(seconds[True], seconds[False])


def _fastest_round(module: IdleMethod, count: int, is_checked: bool, max_norm: float | None) -> float:
    """Measure the duration of the fastest of a few rounds."""
    with ExitStack() as changes:
        if not is_checked:
            for name, nothing in WITHOUT_CHECKS.items():
                changes.enter_context(patch(name, nothing))
        federation = Federation(
            6,
            accelerator="cpu",
            enable_progress_bar=False,
            default_root_dir=changes.enter_context(tempfile.TemporaryDirectory()),
            runtime=Runtime(num_threads=torch.get_num_threads(), default_callbacks=False),
            server=Server(max_update_norm=max_norm if is_checked else None),
        )
        changes.enter_context(redirect_stdout(StringIO()))
        federation.fit(module, NoImages(count))
    return min(float(row["seconds"]) for row in federation.run_state.history[1:])


WITHOUT_CHECKS: dict[str, Any] = {
    "fedvlp.training.round.update_error": lambda *update: "",
    "fedvlp.training.client.upload_error": lambda state: "",
    "fedvlp.training.client.is_finite": lambda *states: True,
}
"""Replaces each check of an update."""


def measure_average(
    count: int, shape: tuple[int, ...], average: Callable[[ServerState, list[ClientUpdate]], object], seconds: float
) -> LoopResult:
    """Measure the average of this many clients' states in this process."""
    clients = [Client(index, 0, 10 + index, str(index)) for index in range(count)]
    updates = [ClientUpdate(client, {"prompts": torch.rand(shape)}, client.num_examples) for client in clients]
    server = ServerState.start({"prompts": torch.zeros(shape)})
    return LoopResult(measure_for(lambda: average(server, updates), seconds, most=50), bandwidth())


def ours(server: ServerState, updates: list[ClientUpdate]) -> State:
    """Compute the average with the library."""
    return FedAvg().aggregate(server, updates).shared


def plain(server: ServerState, updates: list[ClientUpdate]) -> State:
    """Compute the average as it is commonly written."""
    total = sum(update.num_examples for update in updates)
    mean: State = {name: torch.zeros_like(value) for name, value in server.shared.items()}
    for update in updates:
        mean = {name: value + update.num_examples / total * update.state[name] for name, value in mean.items()}
    return mean


AVERAGES: dict[str, Callable[..., Any]] = {"plain": plain, "ours": ours}


def _row(label: str, result: LoopResult, count: int, bytes_a_client: int) -> list[str]:
    """Format a row of the table, in milliseconds."""
    found = result.found
    moved = count * bytes_a_client
    floor = moved / result.bandwidth
    # The bandwidth of main memory does not limit data that fits into caches.
    limits = [number(1000 * floor), percent(floor / found.median)] if moved >= 1e8 else ["-", "-"]
    each = number(1e6 * found.median / count)
    spread = seconds_with_spread([1000 * second for second in found.seconds])
    return [label, *spread, each, *limits, number(found.megabytes)]


def _bytes(shape: tuple[int, ...]) -> int:
    return 4 * torch.Size(shape).numel()


def _size(shape: tuple[int, ...]) -> str:
    return f"{_bytes(shape) / 2**20:g} MB"
