"""Chooses AdamW's learning rate for each method by its mean accuracy on *source validation*, and writes rates.json.

``python -m experiments.quickstart.tune``: seed 0, each style held out in turn, last round.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.quickstart.setting import CHOSEN, setting
from experiments.rates import add_rates, choose_rates

RATES = (4e-4, 1e-3, 3e-3, 1e-2)
METHODS = ("single_domain", "promptfl", "trip")


def main() -> None:
    """Makes the runs and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/quickstart"), help="folder of the runs")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, each on one core")
    options = parser.parse_args()
    where = setting(options.output)
    methods = dict.fromkeys(METHODS, ())
    add_rates(CHOSEN, choose_rates(methods, RATES, where, where.domains(), options.workers))


if __name__ == "__main__":
    main()
