"""Print the study's tables as Markdown. The options must equal ``run``'s, to find its runs.

``python -m experiments.protocols.table --readme NAME`` also writes them into this folder's README, at the mark of this
name.
"""

from __future__ import annotations

import statistics
from itertools import chain
from pathlib import Path

from experiments.options import Choice
from experiments.protocols.rows import METHODS, PROTOCOLS, Measured
from experiments.protocols.run import study_parser
from experiments.runs import SeededRuns
from experiments.tables import complete, markdown, print_table, seed_means, spread

README = Path(__file__).with_name("README.md")
ZERO_SHOT = "zero-shot CLIP"


def cells(title: str, protocol: Measured, runs: SeededRuns) -> list[str]:
    """Format a method's row: the mean of each metric over held-out domains, and its deviation over seeds."""
    return [title, *(spread(seed_means(runs, metric)) for metric in protocol.columns.values()), str(len(runs))]


def zero_shot_cells(protocol: Measured, runs: SeededRuns) -> list[str]:
    """Format zero-shot CLIP's row, which all runs evaluate on the same images for any seed."""
    found = [ZERO_SHOT]
    for metric in protocol.columns.values():
        found.append(f"{statistics.mean(run.accuracy(metric, ZERO_SHOT) for run in runs[0]):.1f}")
    return [*found, "1"]


def section(protocol: Measured, choice: Choice) -> str:
    """Format a protocol's heading, a line on its runs, and its table; incomplete rows are listed."""
    done: dict[str, SeededRuns] = {}
    for title, config in METHODS.items():
        runs = complete(protocol.runs(config, choice))
        if runs:
            done[title] = runs
    heading = f"### {protocol.title}"
    if not done:
        return f"{heading}\n\nNot run yet."
    first = next(iter(done.values()))
    description = first[0][0].summary["protocol"]
    if protocol.holds_out:
        description = f"held out in turn: {', '.join(map(str, choice.held_out))}; such as: {description}"
    lines = [zero_shot_cells(protocol, first), *(cells(title, protocol, runs) for title, runs in done.items())]
    rows = markdown(["method", *protocol.columns, "seeds"], lines)
    missing = [title for title in METHODS if title not in done]
    note = f"\n\nNot run yet: {', '.join(missing)}." if missing else ""
    return f"{heading}\n\n{description}\n\n{rows}{note}"


def seconds(choice: Choice) -> str:
    """Describe the training time of all finished runs."""
    every = []
    for protocol in PROTOCOLS:
        for config in METHODS.values():
            every += [run for run in chain.from_iterable(protocol.runs(config, choice)) if run.is_done]
    total = sum(run.record.seconds for run in every)
    return f"{len(every)} runs, which trained and measured for {total / 60:.0f} minutes together."


def table(choice: Choice) -> str:
    """Format the sections of all protocols."""
    return "\n\n".join([seconds(choice), *(section(protocol, choice) for protocol in PROTOCOLS)])


def main() -> None:
    """Print the tables."""
    print_table(study_parser(__doc__), table, README)


if __name__ == "__main__":
    main()
