"""Many clients with few images: trained one after another, and several in one call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.apart import apart
from benchmarks.floor import matrix_rate
from benchmarks.made_up import Points
from benchmarks.measure import Measurement, measure_for
from benchmarks.steps import CLASS_NAMES, least_operations, make_module
from benchmarks.tables import Table, number, percent, seconds_with_spread
from fedvlp.clip import CLIPSpec, load_clip
from fedvlp.core.state import State
from fedvlp.federation import Federation

IMAGES = 4

NOTES = """Rounds of many clients with made-up features of four images each, so one local step of each client a round;
nothing is evaluated or written. The option is `clients_per_step`. *Differs by* is the largest difference of the
server's state after the last round, against its largest value, from that of clients one after another. The floor is the
least operations of all clients' steps at the rate of a large float32 product in the same process. DiPrompT's steps go
by the domains that they find in a batch, so that its clients train one after another all the same: its rows show what
asking costs."""


def tables(quick: bool, figures: Path | None = None) -> Iterator[Table]:
    """Returns a table for each method."""
    spec, count = (CLIPSpec("fedvlp-tiny"), 16) if quick else (CLIPSpec("ViT-B-16", "random"), 32)
    header = (
        "clients in a call",
        "seconds a round",
        "least to greatest",
        "rounds",
        "times faster",
        "of the floor",
        "MB",
    )
    for method in ("PromptFL", "DiPrompT"):
        rows, first, expected = [], 0.0, None
        for together in (1, 4, 16):
            found, state, floor = apart(measure_rounds, method=method, spec=spec, count=count, together=together)
            first, expected = first or found.median, state if expected is None else expected
            shares = [number(first / found.median), percent(floor / found.median), number(found.megabytes)]
            difference = f"{_difference(state, expected):.1e}"
            rows.append([str(together), *seconds_with_spread(found.seconds), *shares, difference])
        title = f"clients: {method}, {count} clients, {IMAGES} images each, {spec.name}"
        yield Table(title, (*header, "differs by"), rows)


def measure_rounds(method: str, spec: CLIPSpec, count: int, together: int) -> tuple[Measurement, State, float]:
    """Returns what the rounds took but for the first, the server's state after them, and the floor of a round."""
    clip, names = load_clip(spec), CLASS_NAMES[7]
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
    return Measurement(seconds, found.megabytes), federation.run_state.server.shared, floor


def _difference(found: State, expected: State) -> float:
    """Returns the largest difference, against the largest value of the same tensor."""
    return max(float((found[name] - value).abs().max() / value.abs().max()) for name, value in expected.items())
