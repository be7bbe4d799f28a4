"""Leave one style out, over all styles and several seeds: every method on StyledShapes with the bundled tiny CLIP.

``python -m experiments.quickstart.run`` makes the runs that are missing, two at a time, and prints the tables: each
method with its paper's optimizer, and with AdamW at the learning rate that ``tune`` chose.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.quickstart.jobs import Job, run_all
from experiments.quickstart.tune import CHOSEN
from fedvlp.data import StyledShapes

TITLES = {
    "zero_shot": "zero-shot CLIP, one template",
    "zero_shot_ensemble": "zero-shot CLIP, 60 templates",
    "single_domain": "single-domain tuning",
    "promptfl": "PromptFL",
    "trip": "TRIP",
    "trip_keys": "TRIP, clusters start at keys",
}
Row = tuple[str, float | None]


def table(rows: Sequence[Row], styles: Sequence[str], seeds: Sequence[int], output: Path, choice: str) -> str:
    """Returns mean and standard deviation over seeds in percent, a column a held-out style, as Markdown."""
    lines = [f"| method | optimizer | {' | '.join(styles)} | mean |", f"|---|---|{'---:|' * (len(styles) + 1)}"]
    for config, rate in rows:
        scores = [
            [Job(config, style, seed, rate, output).accuracy(choice, "held_out") for style in styles] for seed in seeds
        ]
        columns = [*zip(*scores, strict=True), tuple(statistics.mean(of_seed) for of_seed in scores)]
        cells = " | ".join(f"{statistics.mean(column):.1f} ± {statistics.pstdev(column):.1f}" for column in columns)
        optimizer = "none" if config.startswith("zero") else "paper's" if rate is None else f"AdamW {rate:g}"
        lines.append(f"| {TITLES[config]} | {optimizer} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Makes the runs and the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/quickstart"), help="folder of the runs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of training")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, each on one core")
    parser.add_argument("--more", nargs="*", default=[], help="further configs to run with TRIP's learning rate")
    options = parser.parse_args()
    rates: dict[str, float] = json.loads(CHOSEN.read_text(encoding="utf-8"))
    rows: list[Row] = [("zero_shot", None), ("zero_shot_ensemble", None)]
    rows += [(method, rate) for method in rates for rate in (None, rates[method])]
    rows += [(config, rates["trip"]) for config in options.more]
    styles = StyledShapes().domains
    seeds: list[int] = options.seeds
    run_all(
        (Job(config, style, seed, rate, options.output) for seed in seeds for config, rate in rows for style in styles),
        options.workers,
    )
    text = []
    for choice in ("last round", "best on source validation"):
        text += [
            f"Accuracy on the held-out style in %, {choice}, mean ± standard deviation over {len(seeds)} seeds:",
            "",
        ]
        text += [table(rows, styles, seeds, options.output, choice), ""]
    sys.stdout.write("\n".join(text) + "\n")
    (options.output / "results.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
