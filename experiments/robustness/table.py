"""Print the robustness study as Markdown: accuracy and success of backdoors, by number of hostile clients.

``python -m experiments.robustness.table --readme`` also writes the tables into this folder's README. The options must
equal ``run``'s, to find its runs.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.options import Choice
from experiments.robustness.run import ATTACKS, BACKDOORS, RULES, Cell, chosen, study_parser
from experiments.runs import SeededRuns, StudyRun
from experiments.tables import complete, describe, markdown, spread, write_block
from fedvlp.results import load_record

HERE = Path(__file__).parent
NOT_RUN = "-"


def accuracy(run: StudyRun) -> float:
    """Compute the mean of source validation and held-out accuracy, in percent."""
    return statistics.mean([run.accuracy("validation"), run.accuracy("held_out")])


def success(run: StudyRun) -> float:
    """Look up the success of the backdoor on the held-out domain after the last round, in percent."""
    attempts = sorted(run.job.folder.glob("*/summary.json"))
    return load_record(attempts[-1].parent).history[-1]["attack_success/held_out"]


def text(runs: SeededRuns, measure: Callable[[StudyRun], float]) -> str:
    """Format the mean over held-out domains, with its standard deviation over complete seeds."""
    done = complete(runs)
    if not done:
        return NOT_RUN
    return spread([statistics.mean(map(measure, of_seed)) for of_seed in done])


def lines(choice: Choice, cells: Sequence[Cell]) -> list[list[str]]:
    """Format the rows: one per method, attack and aggregator, with a column per number of hostile clients.

    Rows without a finished run with hostile clients are skipped.
    """
    by_row: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        by_row.setdefault((cell.method, cell.attack, cell.rule), []).append(cell)
    rows = []
    for (method, attack, rule), of_row in by_row.items():
        if not any(cell.hostile and complete(cell.runs(choice)) for cell in of_row):
            continue
        rows.append([method, attack, rule, *(text(cell.runs(choice), accuracy) for cell in of_row)])
        if attack in BACKDOORS:
            rates = [text(cell.runs(choice), success) for cell in of_row]
            rows.append([method, f"{attack}, success", rule, *rates])
    order = [*ATTACKS, *(f"{attack}, success" for attack in BACKDOORS)]
    methods = list(dict.fromkeys(cell.method for cell in cells))
    return sorted(rows, key=lambda row: (methods.index(row[0]), order.index(row[1]), list(RULES).index(row[2])))


def table(choice: Choice, cells: Sequence[Cell]) -> str:
    """Format the table, with a line on how its numbers were made."""
    numbers = list(dict.fromkeys(cell.hostile for cell in cells))
    head = ["method", "attack", "rule", *(f"{number} of 10 hostile" for number in numbers)]
    done = [complete(cell.runs(choice)) for cell in cells]
    made = f"{describe(max(done, key=len))}.\n\n" if any(done) else ""
    return f"{made}{markdown(head, lines(choice, cells), texts=3)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = study_parser(__doc__)
    parser.add_argument("--readme", action="store_true", help="also write it into the README")
    choice, cells = chosen(parser, arguments)
    made = table(choice, cells)
    sys.stdout.write(f"{made}\n")
    if choice.options.readme:
        write_block(HERE / "README.md", "robustness", made)


if __name__ == "__main__":
    main()
