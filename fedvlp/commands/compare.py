"""The command ``fedvlp compare``: tables of finished runs, and of the papers' printed numbers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvlp.results import find_records
from fedvlp.results.compare import Selection, Table, tables
from fedvlp.results.compare_papers import render_printed_table, tidy_printed_rows
from fedvlp.results.formats import TableFormat, format_tables
from fedvlp.results.grouping import describe_differences
from fedvlp.results.intervals import with_intervals
from fedvlp.results.paper_methods import matching_printed_tables
from fedvlp.results.papers import PrintedTable, main_tables, papers
from fedvlp.results.rendering import render_table
from fedvlp.results.tidy import TIDY_COLUMNS, tidy_rows
from fedvlp.utils.csv_cells import csv_text
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_text

SELECTIONS: dict[str, tuple[Selection, ...]] = {"last": ("last",), "best": ("best",), "both": ("last", "best")}
TableToPrint = Table | tuple[PrintedTable, Table | None]
"""One of our tables, or a printed one with that of ours which stands in it."""


def run_compare(arguments: Sequence[str]) -> int:
    """Prints the tables, and returns the exit code: 1 if a path was no finished run, else 0.

    Raises:
        UserError: if there is nothing to print.
    """
    options = _parser().parse_args(arguments)
    records, problems = find_records(options.runs)
    oracle: tuple[Selection, ...] = ("oracle",) if options.oracle else ()
    ours = tables(records, (*SELECTIONS[options.row], *oracle))
    if options.intervals:
        ours = [with_intervals(table) for table in ours]
    parts = _parts(ours, options.papers, options.data)
    if not parts:
        reason = " ".join(problems) or "Give run folders, or folders of runs."
        raise UserError(f"There is no finished run to compare. {reason}")
    text = _tidy(parts) if options.format == "csv" else _rendered(ours, parts, options.format)
    _write(f"{text}\n", options.output)
    sys.stderr.writelines(f"fedvlp compare: left out: {problem}\n" for problem in problems)
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's options."""
    parser = argparse.ArgumentParser(
        "fedvlp compare", description="Compare finished runs: domains as columns, mean and deviation over seeds."
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run folders, or folders of runs at any depth")
    parser.add_argument("--format", choices=("table", "markdown", "csv", "latex"), default="table")
    parser.add_argument(
        "--row", choices=SELECTIONS, default="both", help="which round: last, best on source validation"
    )
    parser.add_argument(
        "--intervals",
        action="store_true",
        help="put the 95 %% interval of a bootstrap over images behind each cell of a last round",
    )
    parser.add_argument(
        "--oracle",
        action="store_true",
        help="add the round that is best on the images compared, which is not allowed, and its gap to the last",
    )
    parser.add_argument(
        "--papers",
        nargs="*",
        metavar="PAPER",
        help=f"put printed numbers beside ours, of all papers or of some: {', '.join(papers())}",
    )
    parser.add_argument("--data", metavar="NAME", help="with --papers: print tables of this data set without runs, too")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write into a file instead")
    return parser


def _parts(ours: Sequence[Table], wanted: Sequence[str] | None, data: str | None) -> list[TableToPrint]:
    """Returns what is printed, in order: each table of ours with the papers' beside it, then papers' tables alone."""
    if wanted is None:
        if data is not None:
            raise UserError("--data chooses printed tables. Give --papers as well, or leave it out.")
        return list(ours)
    asked = main_tables(wanted, data)
    parts: list[TableToPrint] = []
    shown: set[tuple[str, str, str]] = set()
    for table in ours:
        beside = matching_printed_tables(table, wanted)
        shown.update((printed.paper, printed.table, printed.dataset) for printed in beside)
        parts += [table, *((printed, table) for printed in beside)]
    if ours and data is None:
        return parts
    alone = [printed for printed in asked if (printed.paper, printed.table, printed.dataset) not in shown]
    return parts + [(printed, None) for printed in alone]


def _rendered(ours: Sequence[Table], parts: Sequence[TableToPrint], form: TableFormat) -> str:
    """Returns the tables for readers, below a line that says in what ours differ."""
    rendered = [render_table(part) if isinstance(part, Table) else render_printed_table(*part) for part in parts]
    differ = describe_differences([table.group for table in ours])
    text = format_tables(rendered, form)
    if not differ:
        return text
    return f"% {differ}\n\n{text}" if form == "latex" else f"{differ}\n\n{text}"


def _tidy(parts: Sequence[TableToPrint]) -> str:
    """Returns every cell of every table as a row of CSV."""
    rows: list[dict[str, Any]] = []
    for which, part in enumerate(parts, 1):
        rows += tidy_rows(part, which) if isinstance(part, Table) else tidy_printed_rows(part[0], which, part[1])
    return csv_text(TIDY_COLUMNS, rows)


def _write(text: str, path: Path | None) -> None:
    """Prints text, or writes it into a file in one step.

    Raises:
        UserError: if the file can't be written.
    """
    if path is None:
        sys.stdout.write(text)
        return
    try:
        write_text(path, text)
    except OSError as error:
        raise UserError(f"{path} can't be written ({error}). Give --output a file in a folder that exists.") from error
