"""What separates TRIP from PromptFL on StyledShapes, one difference at a time.

``python -m experiments.quickstart.why``: AdamW with TRIP's rate from ``rates.json``, batches of 16, the last round, two
of the seeds of ``run`` and all styles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from experiments.quickstart.jobs import Job, run_all
from experiments.quickstart.tune import CHOSEN
from fedvlp.data import StyledShapes

SINGLE = ("--model.num_experts=1",)
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "TRIP": ("trip", ()),
    "clusters start at keys": ("trip_keys", ()),
    "no KL": ("trip", ("--model.kl_weight=0",)),
    "experts of 16 tokens": ("trip", ("--model.prompt_length=16",)),
    "one expert of 32 tokens": ("trip", SINGLE),
    "one expert of 32 tokens, no KL": ("trip", (*SINGLE, "--model.kl_weight=0")),
    "one expert of 16 tokens (PromptFL + KL)": ("trip", (*SINGLE, "--model.prompt_length=16")),
    "one expert of 16 tokens, no KL (PromptFL)": ("trip", (*SINGLE, "--model.prompt_length=16", "--model.kl_weight=0")),
}


def main() -> None:
    """Makes the runs and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/quickstart"), help="folder of the runs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1], help="seeds of training")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, each on one core")
    options = parser.parse_args()
    rate = json.loads(CHOSEN.read_text(encoding="utf-8"))["trip"]
    styles = StyledShapes().domains
    jobs = {
        title: [
            [Job(config, style, seed, rate, options.output, overrides) for style in styles] for seed in options.seeds
        ]
        for title, (config, overrides) in VARIANTS.items()
    }
    run_all((job for of_seeds in jobs.values() for of_styles in of_seeds for job in of_styles), options.workers)
    lines = ["| variant | source validation | held-out style |", "|---|---:|---:|"]
    for title, of_seeds in jobs.items():
        cells = []
        for column in ("validation", "held_out"):
            means = [statistics.mean(job.accuracy("last round", column) for job in of_styles) for of_styles in of_seeds]
            cells.append(f"{statistics.mean(means):.1f} ± {statistics.pstdev(means):.1f}")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
