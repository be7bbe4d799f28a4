"""Makes the runs of the fair comparison: each domain held out in turn, each method with each learning rate.

``python -m experiments.fair_comparison.run`` is StyledShapes with the bundled tiny CLIP; with ``--data FOLDER`` it is
one's own images. With the first seed every rate is tried; with the others only the chosen one. Runs that are there are
not made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from experiments.fair_comparison.methods import METHODS, RATES, ROUNDS, Compared
from experiments.options import Choice, parse, shared_parser
from experiments.runs import StudyRun, make_runs


def tried(method: Compared, choice: Choice, held_out: str | None) -> dict[float | None, StudyRun]:
    """Returns the runs of the first seed by learning rate; a method that trains nothing has one, without a rate."""
    rates = RATES if method.trains else (None,)
    rounds = choice.options.rounds
    return {rate: method.run(choice.setting, held_out, choice.seeds[0], rate, rounds) for rate in rates}


def chosen_rate(runs: Mapping[float | None, StudyRun]) -> float | None:
    """Returns the rate that is best on source validation in the last round, the smallest of several.

    Each held-out domain has its own choice: the validation images of the other domains are all that it rests on.
    """
    return max(runs, key=lambda rate: runs[rate].accuracy("validation"))


def runs_of(method: Compared, choice: Choice) -> list[list[StudyRun]]:
    """Returns a method's runs with the chosen rates: for each seed, one for each held-out domain.

    All runs of :func:`tried` must have ended.
    """
    rates = {held_out: chosen_rate(tried(method, choice, held_out)) for held_out in choice.held_out}
    rounds = choice.options.rounds
    runs = []
    for seed in choice.seeds if method.trains else choice.seeds[:1]:
        runs.append([method.run(choice.setting, name, seed, rate, rounds) for name, rate in rates.items()])
    return runs


def all_tried(method: Compared, choice: Choice) -> list[StudyRun]:
    """Returns the runs of the first seed with each rate and each held-out domain."""
    return list(chain.from_iterable(tried(method, choice, held_out).values() for held_out in choice.held_out))


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the runs, one method after the other."""
    parser = shared_parser(__doc__, ROUNDS)
    parser.add_argument("--methods", default="", help="names of configs, a,b,c; all if not given")
    choice = parse(parser, arguments)
    wanted = choice.options.methods.split(",") if choice.options.methods else [each.config for each in METHODS]
    for method in METHODS:
        if method.config in wanted:
            make_runs(all_tried(method, choice), choice.workers)
            make_runs(chain.from_iterable(runs_of(method, choice)), choice.workers)


if __name__ == "__main__":
    main()
