"""Print the study's table as Markdown. The options must equal the options of ``run``, because they identify the runs.

``python -m experiments.closed_form.table --readme NAME`` also writes the table into this folder's README, between the
marks with this name.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from experiments.closed_form.run import METHODS, Compared, study_parser
from experiments.options import Choice
from experiments.runs import StudyRun
from experiments.tables import markdown, print_table
from fedvlp.results.record import LAST_ROW, ZERO_SHOT_ROW

README = Path(__file__).with_name("README.md")


def chosen(method: Compared, choice: Choice) -> list[StudyRun]:
    """Choose, for each held-out domain, the run with the best source validation; empty if runs are missing."""
    by_domain = [method.runs(choice, held_out) for held_out in choice.held_out]
    if not all(run.is_done for runs in by_domain for run in runs):
        return []
    return [max(runs, key=lambda run: run.accuracy("validation")) for runs in by_domain]


def figures(run: StudyRun, balanced: bool) -> list[float]:
    """Collect accuracies in percent: source validation, held out, and balanced accuracy of the held-out images."""
    accuracies = [run.accuracy("validation"), run.accuracy("held_out")]
    if balanced:
        metrics = run.summary["metrics"]
        # Zero-shot CLIP's own runs have no rounds.
        row = metrics.get(LAST_ROW, metrics.get(ZERO_SHOT_ROW))
        accuracies.append(row["held_out"]["balanced_accuracy"])
    return accuracies


def cells(method: Compared, runs: Sequence[StudyRun], balanced: bool) -> list[str]:
    """Format a row: rates, accuracies for each held-out domain, parameters sent in all rounds, and seconds."""
    rates = [run.overrides[-1].split("=")[1] for run in runs] if method.rates else ["-"]
    accuracies = [f"{figure:.1f}" for run in runs for figure in figures(run, balanced)]
    summary = runs[0].summary
    sent = summary["communication_per_client_and_round"]["upload_parameters"] * summary["rounds"]
    seconds = statistics.mean(run.summary["seconds"] for run in runs)
    return [
        method.title,
        ", ".join(rates if len(set(rates)) > 1 else rates[:1]),
        *accuracies,
        f"{sent:,}",
        f"{seconds:.1f}",
    ]


def table(choice: Choice) -> str:
    """Format all rows with complete runs, and name the others."""
    balanced = choice.options.balanced
    done = {method: runs for method in METHODS if (runs := chosen(method, choice))}
    columns = ["source validation", "held out", *(["balanced"] if balanced else [])]
    head = ["method", "rate", *(f"{domain}: {column}" for domain in choice.held_out for column in columns)]
    lines = [cells(method, runs, balanced) for method, runs in done.items()]
    missing = [method.title for method in METHODS if method not in done]
    note = f"\n\nNot run yet: {', '.join(missing)}." if missing else ""
    return f"{markdown([*head, 'sent', 'seconds'], lines, texts=2)}{note}"


def main() -> None:
    """Print the table."""
    parser = study_parser(__doc__)
    parser.add_argument("--balanced", action="store_true", help="also show balanced accuracy on the held-out images")
    print_table(parser, table, README)


if __name__ == "__main__":
    main()
