"""Makes the runs of the table of all methods: each domain held out in turn, several seeds.

``python -m experiments.systems.run`` is StyledShapes with the bundled tiny CLIP; with ``--data FOLDER`` it is one's own
images. Runs that are there are not made again.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.options import Choice, parse, shared_parser
from experiments.runs import Run, every_run, make_runs
from experiments.systems.rows import Row, all_rows

ROUNDS = 5


def runs_of(row: Row, choice: Choice) -> list[list[Run]]:
    """Returns a row's runs: for each seed, one for each held-out domain."""
    return every_run(row.config, row.arguments, choice.setting, choice.held_out, choice.seeds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the runs, one seed of all methods after the other."""
    parser = shared_parser(__doc__, ROUNDS)
    parser.add_argument("--methods", default="", help="names of configs, a,b,c; all if not given")
    choice = parse(parser, arguments)
    wanted = choice.options.methods.split(",") if choice.options.methods else [row.config for row in all_rows()]
    rows = [runs_of(row, choice) for row in all_rows() if row.config in wanted]
    make_runs((run for number in range(len(choice.seeds)) for row in rows for run in row[number]), choice.workers)


if __name__ == "__main__":
    main()
