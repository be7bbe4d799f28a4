"""The command ``fedvlp compare``: tables of finished runs, next to published numbers."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedvlp.results import find_records
from fedvlp.runs.run_folder import list_run_files
from fedvlp.tools.compare.grouping import describe_differences
from fedvlp.tools.compare.papers import main_tables, matching_tables, paper_text, papers
from fedvlp.tools.compare.printing import TextTable, format_csv, format_tables, table_text
from fedvlp.tools.compare.tables import BEST, LAST, ORACLE, Table, add_intervals, tables
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import check_replaceable, write_text

ROUNDS = {"last": [LAST], "best": [BEST], "both": [LAST, BEST]}
ONE_SEED = "Results of a single seed: another seed may change the order. `fedvlp sweep` runs three seeds."


def run_compare(arguments: Sequence[str]) -> int:
    """Print the tables and return the exit code: 1 if a path was not a finished run, otherwise 0."""
    options = _parser().parse_args(arguments)
    if options.output is not None:
        check_replaceable(options.output, list_run_files(map(Path, options.runs)))
    if options.format == "csv" and options.papers is not None:
        raise UserError("--format csv contains only your runs. Remove --papers, or choose another format.")
    needs = {"history": options.oracle, "predictions": options.intervals}
    records, problems = find_records(options.runs, [name for name, is_needed in needs.items() if is_needed])
    compared = tables(records, ROUNDS[options.row] + ([ORACLE] if options.oracle else []))
    if options.intervals:
        compared = [add_intervals(table) for table in compared]
    texts = _texts(compared, options.papers)
    if not texts:
        reason = " ".join(problems) or "Pass run folders, or folders of runs."
        raise UserError(f"There is no finished run to compare. {reason}")
    one_seed = ONE_SEED if any(len(table.seeds) == 1 for table in compared) else ""
    headers = filter(None, [one_seed, describe_differences([table.about for table in compared])])
    comment = "% " if options.format == "latex" else ""
    text = "".join(f"{comment}{line}\n\n" for line in headers)
    text = format_csv(compared) if options.format == "csv" else text + format_tables(texts, options.format) + "\n"
    if options.output is None:
        sys.stdout.write(text)
    else:
        write_text(options.output, text)
    sys.stderr.writelines(f"fedvlp compare: skipped: {problem}\n" for problem in problems)
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "fedvlp compare", description="Compare finished runs: a column per domain, mean and deviation over seeds."
    )
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="run folders, or folders of runs at any depth")
    add("--format", choices=("table", "markdown", "latex", "csv"), default="table")
    add("--row", choices=ROUNDS, default="both", help="last round, best on source validation, or both")
    help = "add the 95 %% bootstrap interval over images or groups to each cell of a last round"
    add("--intervals", action="store_true", help=help)
    help = "add the best round on the compared images, which must not be selected, and its gap to the last round"
    add("--oracle", action="store_true", help=help)
    help = f"add published numbers next to ours, from all papers or from some of {', '.join(papers())}"
    add("--papers", nargs="*", metavar="PAPER", help=help)
    add("--output", type=Path, metavar="FILE", help="write to a file instead of printing")
    return parser


def _texts(compared: Sequence[Table], selected_papers: Sequence[str] | None) -> list[TextTable]:
    """Format our tables, each followed by the matching published tables; without runs, all published tables."""
    if selected_papers is None:
        return [table_text(table) for table in compared]
    # Called first, so that an unknown paper is an error for any runs.
    all_printed = main_tables(selected_papers)
    texts = []
    for table in compared:
        texts.append(table_text(table))
        texts += [paper_text(printed, table) for printed in matching_tables(table, selected_papers)]
    return texts or [paper_text(printed) for printed in all_printed]
