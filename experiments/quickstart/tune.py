"""Chooses AdamW's learning rate for each method by its mean accuracy on *source validation*, and writes rates.json.

``python -m experiments.quickstart.tune``: seed 0, each style held out in turn, last round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from experiments.quickstart.jobs import Job, run_all
from fedvlp.data import StyledShapes

RATES = (4e-4, 1e-3, 3e-3, 1e-2)
METHODS = ("single_domain", "promptfl", "trip")
CHOSEN = Path(__file__).with_name("rates.json")


def main() -> None:
    """Makes the runs and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/quickstart"), help="folder of the runs")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, each on one core")
    options = parser.parse_args()
    styles = StyledShapes().domains
    jobs = {
        (method, rate): [Job(method, style, 0, rate, options.output) for style in styles]
        for method in METHODS
        for rate in RATES
    }
    run_all((job for group in jobs.values() for job in group), options.workers)
    chosen = {}
    for method in METHODS:
        scores = {rate: _validation(jobs[method, rate]) for rate in RATES}
        chosen[method] = max(scores, key=lambda rate: scores[rate])
        line = ", ".join(f"{rate:g}: {score:.2f}" for rate, score in scores.items())
        sys.stdout.write(f"{method}: mean source validation accuracy in % by learning rate: {line}\n")
    CHOSEN.write_text(json.dumps(chosen, indent=2) + "\n", encoding="utf-8")


def _validation(jobs: list[Job]) -> float:
    """Returns the mean source validation accuracy of the last round."""
    return statistics.mean(job.accuracy("last round", "validation") for job in jobs)


if __name__ == "__main__":
    main()
