"""Leave one style out, over all styles and several seeds: every method on StyledShapes with the bundled tiny CLIP.

``python -m experiments.quickstart.run`` makes the runs that are missing, two at a time, and prints the tables: each
method with its paper's optimizer, and with AdamW at the learning rate that ``tune`` chose.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.quickstart.setting import CHOSEN, setting
from experiments.rates import read_rates
from experiments.runs import Setting, StudyRun, adamw, every_run, make_runs, seed_by_seed
from experiments.tables import spread

TITLES = {
    "zero_shot": "zero-shot CLIP, one template",
    "zero_shot_ensemble": "zero-shot CLIP, 60 templates",
    "single_domain": "single-domain tuning",
    "promptfl": "PromptFL",
    "trip": "TRIP",
    "trip_keys": "TRIP, clusters start at keys",
}
MethodAndRate = tuple[str, float | None]
"""A method's config, and AdamW's learning rate in place of its paper's optimizer, if there is one."""


def runs_of(row: MethodAndRate, where: Setting, seeds: Sequence[int]) -> list[list[StudyRun]]:
    """Returns a row's runs: for each seed, one for each held-out style."""
    config, rate = row
    return every_run(config, adamw(rate), where, where.domains(), seeds)


def optimizer_name(row: MethodAndRate) -> str:
    """Returns what the table calls the optimizer."""
    config, rate = row
    if config.startswith("zero"):
        return "none"
    return "paper's" if rate is None else f"AdamW {rate:g}"


def table(rows: Sequence[MethodAndRate], where: Setting, seeds: Sequence[int], choice: str) -> str:
    """Returns mean and standard deviation over seeds in percent, a column a held-out style, as Markdown."""
    styles = where.domains()
    lines = [f"| method | optimizer | {' | '.join(styles)} | mean |", f"|---|---|{'---:|' * (len(styles) + 1)}"]
    for row in rows:
        scores = []
        for of_seed in runs_of(row, where, seeds):
            scores.append([run.accuracy("held_out", choice) for run in of_seed])
        columns = [*zip(*scores, strict=True), tuple(statistics.mean(of_seed) for of_seed in scores)]
        cells = " | ".join(spread(column) for column in columns)
        lines.append(f"| {TITLES[row[0]]} | {optimizer_name(row)} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Makes the runs and the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/quickstart"), help="folder of the runs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of training")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, each on one core")
    parser.add_argument("--more", nargs="*", default=[], help="further configs to run with TRIP's learning rate")
    options = parser.parse_args()
    rates = read_rates(CHOSEN)
    rows: list[MethodAndRate] = [("zero_shot", None), ("zero_shot_ensemble", None)]
    for method, rate in rates.items():
        rows += [(method, None), (method, rate)]
    rows += [(config, rates["trip"]) for config in options.more]
    where = setting(options.output)
    seeds: list[int] = options.seeds
    make_runs(seed_by_seed(runs_of(row, where, seeds) for row in rows), options.workers)
    text = []
    for choice in ("last round", "best on source validation"):
        text += [
            f"Accuracy on the held-out style in %, {choice}, mean ± standard deviation over {len(seeds)} seeds:",
            "",
        ]
        text += [table(rows, where, seeds, choice), ""]
    sys.stdout.write("\n".join(text) + "\n")
    (options.output / "results.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
