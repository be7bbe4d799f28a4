"""Compare TRIP's random start of the clusters with a start at the keys, with the measures of ``measures.py``.

``python -m experiments.routing.compare`` prints the table for StyledShapes, and with ``--folder icons_dg`` for a
folder of domains. It uses all images of each domain. Routes do not depend on training, so none is needed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from experiments.routing.measures import MODES, route_measurements
from experiments.tiny_clip.shapes import StyledShapes
from fedvlp import TRIP, load_clip
from fedvlp.data import DomainFolders, FederatedDataModule

VARIANTS: dict[str, dict[str, Any]] = {
    "random start": {},
    "start at the keys": {"cluster_start": "keys"},
    "random start, no capacity": {"train_capacity": None, "eval_capacity": None},
    "random weights": {"routing": "random"},
    "random expert for each token": {"routing": "random_tokens"},
}
COLUMNS = ("dropped", "seeds r", "seeds same", "chance same", "mirror r", "mirror same", "spread")


def images_of(data: FederatedDataModule, module: TRIP) -> Iterator[Tensor]:
    """Yield batches of images of the held-out domain."""
    data.bind(module.transform)
    for loader in data.test_dataloader():
        for images, _ in loader:
            yield images


def line(name: str, mode: str, rows: Sequence[Mapping[str, float | None]]) -> str:
    """Format a row of the table as Markdown, with means over domains."""
    cells = []
    for column in COLUMNS:
        values = [value for row in rows if (value := row[column]) is not None]
        cells.append(f"{statistics.mean(values):.2f}" if values else "-")
    return f"| {name} | {mode} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="folder of domains; default: StyledShapes")
    folder = parser.parse_args().folder
    domains = StyledShapes().domains if folder is None else DomainFolders(folder).domains
    clip = load_clip("fedvlp-tiny")
    print(f"| routing | mode | {' | '.join(COLUMNS)} |\n|---|---|{'---:|' * len(COLUMNS)}")
    for name, options in VARIANTS.items():
        rows = []
        for domain in domains:
            data = StyledShapes(held_out=domain) if folder is None else DomainFolders(folder, held_out=domain)
            data.setup()
            module = TRIP(data.class_names, clip, **options)
            rows.append(route_measurements(module, images_of(data, module)))
        for mode in MODES:
            print(line(name, mode, [row[mode] for row in rows]), flush=True)


if __name__ == "__main__":
    main()
