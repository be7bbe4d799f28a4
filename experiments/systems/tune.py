"""Chooses AdamW's learning rate for methods by their mean accuracy on *source validation*, and adds it to rates.json.

A method whose own optimizer is better than AdamW with each of the rates gets none.

``python -m experiments.systems.tune --methods promptfl,plan``: seed 0, last round.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.options import parse, shared_parser
from experiments.rates import add_rates, choose_rates
from experiments.systems.methods import CHOSEN, METHODS
from experiments.systems.run import ROUNDS

RATES = "0.001,0.003,0.01"


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the runs and writes the file."""
    parser = shared_parser(__doc__, ROUNDS)
    parser.add_argument("--methods", required=True, help="names of configs, a,b,c")
    parser.add_argument("--rates", default=RATES, help="the rates to choose from, a,b,c")
    choice = parse(parser, arguments)
    overrides = {method.config: method.overrides for method in METHODS}
    methods = {config: overrides[config] for config in choice.options.methods.split(",")}
    rates = [None, *(float(rate) for rate in choice.options.rates.split(","))]
    add_rates(CHOSEN, choose_rates(methods, rates, choice.setting, choice.held_out, choice.workers))


if __name__ == "__main__":
    main()
