"""Learning rates of AdamW, chosen by accuracy on *source validation* alone."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from experiments.runs import Setting, StudyRun, adamw, make_runs


def choose_rates(
    methods: Mapping[str, tuple[str, ...]],
    rates: Sequence[float | None],
    setting: Setting,
    held_out: Sequence[str | None],
    workers: int,
) -> dict[str, float | None]:
    """Returns for each config the rate that is best in the last round, mean over held-out domains, with seed 0.

    Args:
        methods: overrides by config.
        rates: the rates to choose from; none stands for the config's own optimizer.
        setting: data, CLIP and folder of the runs.
        held_out: the domains held out in turn.
        workers: runs at a time.
    """
    runs: dict[tuple[str, float | None], list[StudyRun]] = {}
    for config, overrides in methods.items():
        for rate in rates:
            arguments = (*overrides, *adamw(rate))
            runs[config, rate] = [StudyRun(config, domain, 0, setting, arguments) for domain in held_out]
    make_runs(chain.from_iterable(runs.values()), workers)
    chosen = {}
    for config in methods:
        scores = {rate: mean_validation(runs[config, rate]) for rate in rates}
        chosen[config] = max(scores, key=scores.__getitem__)
        line = ", ".join(f"{_rate_name(rate)}: {score:.2f}" for rate, score in scores.items())
        sys.stdout.write(f"* {config}: mean source validation accuracy in % by learning rate: {line}\n")
    return chosen


def mean_validation(runs: Sequence[StudyRun]) -> float:
    """Returns the mean source validation accuracy of runs, in percent."""
    return statistics.mean(run.accuracy("validation") for run in runs)


def _rate_name(rate: float | None) -> str:
    return "its own" if rate is None else f"{rate:g}"


def add_rates(path: Path, chosen: Mapping[str, float | None]) -> None:
    """Writes rates into a JSON file, beside those of other methods; one without a rate is not in it."""
    both = read_rates(path) | dict(chosen)
    rates = {config: rate for config, rate in both.items() if rate is not None}
    path.write_text(json.dumps(rates, indent=2) + "\n", encoding="utf-8")


def read_rates(path: Path) -> dict[str, float]:
    """Returns the rates in a JSON file, none if it is not there."""
    rates: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return rates
