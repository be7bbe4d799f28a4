"""Make the runs of all protocols: seven methods with equal steps and the same optimizer.

``python -m experiments.protocols.run`` uses IconDomains with fedvlp-small, with emoji and pixel art held out together.
Finished runs are kept, so a stopped study resumes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from experiments.options import Choice, parse, shared_parser
from experiments.protocols.rows import METHODS, PROTOCOLS, ROUNDS
from experiments.runs import SeededRuns, make_runs, seed_by_seed


def study_parser(description: str | None) -> argparse.ArgumentParser:
    """Make the parser of the study's commands."""
    parser = shared_parser(description, ROUNDS)
    parser.set_defaults(data="icon_domains", clip="fedvlp-small", held_out="emoji+pixel")
    parser.add_argument("--methods", default=",".join(METHODS.values()), help="names of methods' configs, a,b,c")
    return parser


def rows_of(choice: Choice) -> list[SeededRuns]:
    """List the runs of each requested protocol and method."""
    rows = []
    for protocol in PROTOCOLS:
        rows += [protocol.runs(config, choice) for config in choice.options.methods.split(",")]
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs, with the first seed of all rows first."""
    choice = parse(study_parser(__doc__), arguments)
    make_runs(seed_by_seed(rows_of(choice)), choice.workers)


if __name__ == "__main__":
    main()
