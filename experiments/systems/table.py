"""Prints the table of all methods as Markdown; the options are those of ``run``, by which the runs are found.

``python -m experiments.systems.table --readme NAME`` also writes it into this folder's README, at the mark NAME.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from experiments.options import Choice, parse, shared_parser
from experiments.runs import SeededRuns
from experiments.systems.methods import TunedMethod, all_methods
from experiments.systems.run import ROUNDS, runs_of
from experiments.tables import complete, describe, markdown, seed_means, spread, tested_role, write_block

README = Path(__file__).with_name("README.md")


def cells(method: TunedMethod, runs: SeededRuns) -> list[str]:
    """Returns a row: accuracies on each held-out domain, their mean, and the last round's mean source validation."""
    role = tested_role(runs)
    by_domain = []
    for of_domain in zip(*runs, strict=True):
        if of_domain[0].held_out is not None:
            by_domain.append(spread([run.accuracy(role) for run in of_domain]))
    means = [spread(seed_means(runs, kind)) for kind in (role, "validation")]
    seconds = statistics.median(run.summary["seconds"] for run in chain.from_iterable(runs))
    return [method.title, method.optimizer, *by_domain, *means, f"{len(runs)}", f"{seconds:.0f}"]


def table(choice: Choice) -> str:
    """Returns the table under a line that says how it was made; what is not complete is left out."""
    rows = [(method, complete(runs_of(method, choice))) for method in all_methods()]
    done = [(method, runs) for method, runs in rows if runs]
    left_out = [f"{method.title} ({method.optimizer})" for method, runs in rows if not runs]
    columns = [name for name in choice.held_out if name is not None]
    head = ["method", "optimizer", *columns, "mean", "source validation", "seeds", "seconds a run"]
    parts = ["Not run yet.", markdown(head, [cells(method, runs) for method, runs in done], texts=2)]
    if done:
        trained = [runs for method, runs in done if not method.config.startswith("zero_shot")]
        longest = max(trained, key=len, default=done[0][1])
        parts[0] = f"Accuracy in %. {describe(longest)}."
    if left_out:
        parts.append(f"Not run yet: {', '.join(left_out)}.")
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = shared_parser(__doc__, ROUNDS)
    parser.add_argument("--readme", metavar="NAME", help="write it into the README too, at the mark of this name")
    choice = parse(parser, arguments)
    text = table(choice)
    sys.stdout.write(f"{text}\n")
    if choice.options.readme:
        write_block(README, choice.options.readme, text)


if __name__ == "__main__":
    main()
