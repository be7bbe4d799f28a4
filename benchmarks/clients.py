"""Many clients with few images: trained one after another, and several in one call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.hardware_limits import matrix_rate
from benchmarks.in_subprocess import in_subprocess
from benchmarks.measure import Measurement, measure_for
from benchmarks.steps import CLASS_NAMES, least_operations, make_module
from benchmarks.synthetic import Points
from benchmarks.tables import Table, number, percent, seconds_with_spread
from fedvlp.clip import CLIPSpec, load_clip
from fedvlp.core.state import State
from fedvlp.federation import Federation

IMAGES = 4

HEADER = (
    "clients in a call",
    "seconds a round",
    "least to greatest",
    "rounds",
    "times faster",
    "of the floor",
    "MB",
    "differs by",
)

NOTES = """Rounds of many clients with made-up features of four images each, so one local step of each client a round;
nothing is evaluated or written. The option is `clients_per_step`. *Differs by* is the largest difference of the
server's state after the last round, against its largest value, from that of clients one after another. The floor is the
least operations of all clients' steps at the rate of a large float32 product in the same process. DiPrompT's steps go
by the domains that they find in a batch, so that its clients train one after another all the same: its rows show what
asking costs."""


@dataclass(frozen=True)
class RoundsResult:
    """What rounds with so many clients in a call took.

    Attributes:
        found: Seconds of each round but the first, and peak memory.
        state: The server's state after the last round.
        floor: Seconds that a round's least operations take at the rate of a large matrix product.
    """

    found: Measurement
    state: State
    floor: float


def tables(quick: bool, figures: Path | None = None) -> Iterator[Table]:
    """Returns a table for each method."""
    spec = CLIPSpec("fedvlp-tiny") if quick else CLIPSpec("ViT-B-16", "random")
    count = 16 if quick else 32
    for method in ("PromptFL", "DiPrompT"):
        case = {"method": method, "spec": spec, "count": count}
        results = {together: in_subprocess(measure_rounds, together=together, **case) for together in (1, 4, 16)}
        rows = [_row(together, result, results[1]) for together, result in results.items()]
        yield Table(f"clients: {method}, {count} clients, {IMAGES} images each, {spec.name}", HEADER, rows)


def measure_rounds(method: str, spec: CLIPSpec, count: int, together: int) -> RoundsResult:
    """Returns what the rounds took in this process."""
    clip = load_clip(spec)
    names = CLASS_NAMES[7]
    module = make_module(method, clip, names)
    module.context = None
    data = Points(count, class_names=names, width=clip.embed_dim, images=IMAGES)
    with TemporaryDirectory() as folder:
        federation = Federation(
            4,
            accelerator="cpu",
            num_threads=torch.get_num_threads(),
            default_root_dir=folder,
            enable_progress_bar=False,
            default_callbacks=False,
            clients_per_step=together,
        )
        found = measure_for(lambda: federation.fit(module, data), 0.0)
    seconds = [float(row["seconds"]) for row in federation.run_state.history[1:]]
    floor = count * least_operations(method, clip, names, IMAGES) / matrix_rate()
    return RoundsResult(Measurement(seconds, found.megabytes), federation.run_state.server.shared, floor)


def _row(together: int, result: RoundsResult, first: RoundsResult) -> list[str]:
    """Returns a row of the table; `first` is that of clients one after another."""
    found = result.found
    faster = number(first.found.median / found.median)
    share = percent(result.floor / found.median)
    difference = f"{_difference(result.state, first.state):.1e}"
    return [str(together), *seconds_with_spread(found.seconds), faster, share, number(found.megabytes), difference]


def _difference(found: State, expected: State) -> float:
    """Returns the largest difference, against the largest value of the same tensor."""
    return max(float((found[name] - value).abs().max() / value.abs().max()) for name, value in expected.items())
