"""Print the oracle's gap of each method as Markdown. The options must equal ``run``'s, to find its runs.

``python -m experiments.oracle.table --readme NAME`` also writes it into this folder's README, at the mark of this name.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from experiments.options import Choice
from experiments.oracle.run import METHODS, runs_of, study_parser
from experiments.runs import SeededRuns
from experiments.tables import complete, describe, markdown, print_table
from fedvlp.results.rounds import best_round
from fedvlp.tools.compare.printing import format_cell, format_gap
from fedvlp.tools.compare.tables import AVERAGE, BEST, GAP, LAST, ORACLE, UNTRAINED, tables

README = Path(__file__).with_name("README.md")
ROUNDS = (LAST, BEST, ORACLE)
HEAD = [
    "method",
    "last round",
    "best on source validation",
    ORACLE,
    "gap to last",
    "largest gap of a run",
    "seeds",
]


def cells(title: str, runs: SeededRuns) -> list[str]:
    """Format a row: the mean accuracy by each choice of the round, and the gaps in points."""
    records = [run.record for run in chain.from_iterable(runs)]
    (table,) = tables(records, ROUNDS)
    rows = {row[1]: row for row in table.rows if row[1] != UNTRAINED}
    means = [format_cell(table.cell(rows[name], AVERAGE)) for name in ROUNDS]
    gaps = []
    for record in records:
        best = best_round(record.history, table.role) or {}
        gaps.append(best[table.role] - record.last[table.role])
    return [title, *means, format_gap(table.cell(rows[ORACLE], GAP)), f"{max(gaps):+.1f}", str(len(runs))]


def order(done: Sequence[tuple[str, SeededRuns]]) -> str:
    """Describe how far the order of methods depends on the choice of the round."""
    ranks = {}
    for name in (LAST, ORACLE):
        means = {}
        for title, runs in done:
            (table,) = tables([run.record for run in chain.from_iterable(runs)], (name,))
            is_average = table.cells.index.get_level_values("column") == AVERAGE
            means[title] = table.cells[is_average].xs(name, level="round")["mean"].iloc[0]
        ranks[name] = sorted(means, key=lambda title: -means[title])
    moved = [title for title in ranks[LAST] if ranks[LAST].index(title) != ranks[ORACLE].index(title)]
    if not moved:
        return "The oracle leaves the methods in their order."
    return f"The oracle changes the places of {len(moved)} of {len(done)} methods: {', '.join(moved)}."


def table(choice: Choice) -> str:
    """Format the table, with a line on how it was made; incomplete methods are skipped."""
    rows = [(title, complete(runs_of(config, choice))) for title, config in METHODS.items()]
    done = [(title, runs) for title, runs in rows if runs]
    if not done:
        return "Not run yet."
    lines = [cells(title, runs) for title, runs in done]
    gaps = [float(line[4].split()[0]) for line in lines]
    parts = [
        f"Accuracy in %, gaps in points. {describe(done[0][1]).replace(', last round', '')}.",
        markdown(HEAD, lines),
        f"Mean gap of the methods: {statistics.mean(gaps):+.1f} points. {order(done)}",
    ]
    if left_out := [title for title, runs in rows if not runs]:
        parts.append(f"Not run yet: {', '.join(left_out)}.")
    return "\n\n".join(parts)


def main() -> None:
    """Print the table."""
    print_table(study_parser(__doc__), table, README)


if __name__ == "__main__":
    main()
