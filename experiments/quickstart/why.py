"""What separates TRIP from PromptFL on StyledShapes, one difference at a time.

``python -m experiments.quickstart.why``: AdamW with TRIP's rate from ``rates.json``, batches of 16, the last round, two
of the seeds of ``run`` and all styles.
"""

from __future__ import annotations

import argparse
import sys
from itertools import chain
from pathlib import Path

from experiments.quickstart.setting import CHOSEN, setting
from experiments.rates import read_rates
from experiments.runs import adamw, every_run, make_runs
from experiments.tables import seed_means, spread

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
    rate = read_rates(CHOSEN)["trip"]
    where = setting(options.output)
    rows = {
        title: every_run(config, (*adamw(rate), *overrides), where, where.domains(), options.seeds)
        for title, (config, overrides) in VARIANTS.items()
    }
    make_runs(chain.from_iterable(chain.from_iterable(rows.values())), options.workers)
    lines = ["| variant | source validation | held-out style |", "|---|---:|---:|"]
    for title, row in rows.items():
        cells = [spread(seed_means(row, role)) for role in ("validation", "held_out")]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
