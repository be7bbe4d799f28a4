"""Prints the table of all methods as Markdown; the options are those of ``run``, by which the runs are found.

``python -m experiments.systems.table --readme NAME`` also writes it into this folder's README, at the mark NAME.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.options import Choice, parse, shared_parser
from experiments.systems.rows import Row, all_rows
from experiments.systems.run import ROUNDS, runs_of
from experiments.tables import Rows, complete, describe, markdown, seed_means, spread, tested_role, write_block

README = Path(__file__).with_name("README.md")


def cells(row: Row, runs: Rows) -> list[str]:
    """Returns a row: accuracies on each held-out domain, their mean, and the last round's mean source validation."""
    role = tested_role(runs)
    by_domain = [[run.accuracy(role) for run in of] for of in zip(*runs, strict=True) if of[0].held_out is not None]
    means = [spread(seed_means(runs, kind)) for kind in (role, "validation")]
    seconds = statistics.median(run.summary["seconds"] for of_seed in runs for run in of_seed)
    return [row.title, row.optimizer, *map(spread, by_domain), *means, f"{len(runs)}", f"{seconds:.0f}"]


def table(choice: Choice) -> str:
    """Returns the table under a line that says how it was made; what is not complete is left out."""
    rows = [(row, complete(runs_of(row, choice))) for row in all_rows()]
    done = [(row, runs) for row, runs in rows if runs]
    left_out = [f"{row.title} ({row.optimizer})" for row, runs in rows if not runs]
    columns = [name for name in choice.held_out if name is not None]
    head = ["method", "optimizer", *columns, "mean", "source validation", "seeds", "seconds a run"]
    text = markdown(head, [cells(row, runs) for row, runs in done], texts=2)
    trained = [runs for row, runs in done if not row.config.startswith("zero_shot")]
    longest = max(trained, key=len, default=done[0][1] if done else [])
    made = f"Accuracy in %. {describe(longest)}." if done else "Not run yet."
    return "\n\n".join([made, text, *([f"Not run yet: {', '.join(left_out)}."] if left_out else [])])


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
