"""Makes the runs of the table of all methods: each domain held out in turn, several seeds.

``python -m experiments.systems.run`` is StyledShapes with the bundled tiny CLIP; with ``--data FOLDER`` it is one's own
images. Runs that are there are not made again.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.options import Choice, parse, shared_parser
from experiments.runs import StudyRun, every_run, make_runs, seed_by_seed
from experiments.systems.methods import TunedMethod, all_methods

ROUNDS = 5


def runs_of(method: TunedMethod, choice: Choice) -> list[list[StudyRun]]:
    """Returns a method's runs: for each seed, one for each held-out domain."""
    return every_run(method.config, method.arguments, choice.setting, choice.held_out, choice.seeds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the runs, one seed of all methods after the other."""
    parser = shared_parser(__doc__, ROUNDS)
    parser.add_argument("--methods", default="", help="names of configs, a,b,c; all if not given")
    choice = parse(parser, arguments)
    methods = all_methods()
    if choice.options.methods:
        wanted = choice.options.methods.split(",")
        methods = [method for method in methods if method.config in wanted]
    rows = [runs_of(method, choice) for method in methods]
    make_runs(seed_by_seed(rows), choice.workers)


if __name__ == "__main__":
    main()
