"""A static page of entries: for each protocol and data set a ranking, and what to check each entry by."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from fedvlp.results.compare import Table, TableRow, tables
from fedvlp.results.grouping import describe_differences
from fedvlp.results.ranking import contestants
from fedvlp.results.record import Record
from fedvlp.results.rendered_table import RenderedTable
from fedvlp.results.rendering import describe_group, format_cell, format_range, title
from fedvlp.results.statistics import AVERAGE
from fedvlp.tools.report.html import Html, definitions, folded, html_table, joined, tag
from fedvlp.tools.report.page import counted, page_footer, page_head

ABOUT = (
    "Each method has the accuracy of its last round: nothing is chosen on the images that are compared. Methods are "
    "ranked by the mean, and only those that were measured on every column; mean and sample standard deviation over "
    "seeds."
)
HOW = (
    "An entry is a folder of summary.json, prompts.safetensors and config.yaml. ",
    tag("code", "fedvlp verify ENTRY --data.root IMAGES"),
    " measures its model again, and refuses it if its split, its protocol, its method or any of these numbers differs.",
)


def leaderboard_page(records: Sequence[Record], root: Path, heading: str, day: date) -> str:
    """Returns the page.

    Args:
        records: the entries.
        root: folder of all entries, below which they are named.
        heading: the page's title.
        day: the page's date.
    """
    compared = tables(records, ("last",))
    boards = [_board(table, root) for table in compared]
    difference = describe_differences([table.group for table in compared])
    header = tag(
        "header",
        tag("h1", heading),
        tag("p", tag("time", f"{day.day} {day:%B %Y}", datetime=day.isoformat()), class_="date"),
        tag("p", f"{counted(len(records), 'run')} in {counted(len(boards), 'ranking')}."),
        tag("p", ABOUT, class_="note"),
        tag("p", *HOW, class_="note"),
        *([tag("p", f"{difference}.", class_="note")] if difference else []),
    )
    body = tag("body", header, tag("main", *boards), page_footer())
    return "<!doctype html>\n" + tag("html", page_head(heading), body, lang="en") + "\n"


def _board(table: Table, root: Path) -> Html:
    """Returns one ranking with what its entries are of, and where they are."""
    rows = contestants(table)
    rendered = RenderedTable(
        title="Accuracy after the last round, in %",
        lines=(),
        head=("method", table.average_title, *table.domains, "rounds", "seeds", "up", "down"),
        rows=tuple(_cells(place, row, table) for place, row in enumerate(rows, start=1)),
        text_columns=1,
        notes=(describe_group(table.group.about), "up, down: parameters of one client and round"),
    )
    left_out = sorted({row.label for row in table.rows} - {row.label for row in rows})
    entries = definitions([(row.label, _entries(row, root)) for row in rows if row.is_trained])
    parts = [
        tag("h2", title(table.group.about)),
        html_table(rendered, 0 if len(rows) > 1 else None),
        folded("Entries", entries),
    ]
    if left_out:
        parts.append(tag("p", f"Not ranked, as columns are missing: {', '.join(left_out)}.", class_="note"))
    return tag("section", joined(parts))


def _cells(place: int, row: TableRow, table: Table) -> tuple[str, ...]:
    """Returns the cells of a method, with its place."""
    accuracies = [format_cell(row.cells.get(name)) for name in (AVERAGE, *table.domains)]
    if not row.is_trained:
        return (f"{place}. {row.label}", *accuracies, "-", "-", "-", "-")
    costs = row.costs
    sent = [format_range([costs[name]]) if costs else "-" for name in ("upload_parameters", "download_parameters")]
    seeds = {record.seed for record in row.records}
    return (f"{place}. {row.label}", *accuracies, str(row.records[0].rounds), str(len(seeds)), *sent)


def _entries(row: TableRow, root: Path) -> str:
    """Returns the folders of a method's entries, below that of all."""
    resolved = root.resolve()
    names = []
    for record in row.records:
        folder = record.folder.resolve()
        names.append(folder.relative_to(resolved).as_posix() if folder.is_relative_to(resolved) else folder.as_posix())
    return ", ".join(sorted(names))
