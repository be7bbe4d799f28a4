"""The papers' printed tables, with our results and the difference where a row is of the same method."""

from __future__ import annotations

from typing import Any

from fedvlp.results.compare import Table, TableRow
from fedvlp.results.footnotes import Notes
from fedvlp.results.paper_methods import describe_mismatch, matching_rows
from fedvlp.results.papers import BACKBONES, DATASETS, PROTOCOLS, PrintedRow, PrintedTable, papers, plain_name
from fedvlp.results.rendered_table import RenderedTable
from fedvlp.results.rendering import format_cell
from fedvlp.results.statistics import AVERAGE, Cell


def render_printed_table(printed: PrintedTable, table: Table | None = None) -> RenderedTable:
    """Returns a paper's table, numbers exactly as printed, with ours and the difference below a method that we ran."""
    notes = Notes(printed)
    rows: list[tuple[str, ...]] = []
    for row in printed.rows:
        cells = [notes.cell(row.method, name, row.numbers[name]) for name in (*printed.domains, AVERAGE)]
        rows.append((notes.method(row.method), BACKBONES[row.backbone], *cells))
        if table is not None:
            for own in matching_rows(table, row.method):
                rows += _own_rows(table, own, printed, row)
    return RenderedTable(
        title=f"{printed.name}: {DATASETS[printed.dataset]}",
        lines=_lines(printed, table),
        head=("method", "backbone", *map(notes.domain, printed.domains), AVERAGE),
        rows=tuple(rows),
        text_columns=2,
        notes=tuple(notes.lines),
    )


def tidy_printed_rows(printed: PrintedTable, number: int, table: Table | None = None) -> list[dict[str, Any]]:
    """Returns one row for each printed number, as printed, and for each difference; keys as for our own tables.

    Args:
        printed: the paper's table.
        number: its own, in the column ``table``.
        table: ours, whose differences are to stand below; none if not given.
    """
    notes = Notes(printed)
    tidy: list[dict[str, Any]] = []
    for row in printed.rows:
        common = {
            "table": number,
            "data": DATASETS[printed.dataset],
            "protocol": PROTOCOLS[printed.protocol],
            "shots": printed.shots,
            "backbone": BACKBONES[row.backbone],
            "clients": row.clients,
        }
        for name, value in row.numbers.items():
            note = notes.texts(row.method, name)
            cell = {"column": name, "source": printed.name, "method": row.method, "mean": value, "note": note}
            tidy.append(common | cell)
        if table is not None:
            tidy += [common | difference for difference in _tidy_differences(printed, row, table)]
    return tidy


def _lines(printed: PrintedTable, table: Table | None) -> tuple[str, ...]:
    """Returns what stands above a paper's table."""
    paper = papers()[printed.paper]
    shots = "all images" if printed.shots == "full" else f"{printed.shots}-shot"
    source = f"{paper['title']}; {paper['runs']}. Printed numbers, not obtained with fedvlp"
    protocol = f"{PROTOCOLS[printed.protocol]}; {shots}; split: {paper['split']}"
    if table is None:
        return source, protocol
    return source, protocol, describe_mismatch(table, printed)


def _tidy_differences(printed: PrintedTable, row: PrintedRow, table: Table) -> list[dict[str, Any]]:
    """Returns one row for each difference of ours from the numbers of a printed row."""
    found: list[dict[str, Any]] = []
    for own in matching_rows(table, row.method):
        common = {"source": f"ours - {printed.name}", "method": own.label, "round": own.selection}
        for name, cell in _own_cells(own, printed, table).items():
            if cell is not None:
                difference = _difference(cell, row.numbers[name])
                found.append(common | {"column": name, "mean": difference, "n": cell.count})
    return found


def _own_rows(table: Table, own: TableRow, printed: PrintedTable, row: PrintedRow) -> list[tuple[str, ...]]:
    """Returns our numbers and the differences, with as many decimals as are printed."""
    numbers = []
    differences = []
    for name, cell in _own_cells(own, printed, table).items():
        value = row.numbers[name]
        numbers.append(format_cell(cell, _decimals(value)))
        differences.append("-" if cell is None else _difference(cell, value))
    label = f"{own.label}, {own.selection}" if own.is_trained else own.label
    return [
        (f"  ours: {label}", f"CLIP {own.records[0].clip}", *numbers),
        ("  ours - printed", "", *differences),
    ]


def _own_cells(own: TableRow, printed: PrintedTable, table: Table) -> dict[str, Cell | None]:
    """Returns our cells by the paper's names of the domains; the average only if it is over all of them."""
    # Papers and folders write one domain in several ways, such as "Real World" and "real_world".
    by_plain_name = {plain_name(name): own.cells.get(name) for name in table.domains}
    cells = {name: by_plain_name.get(plain_name(name)) for name in printed.domains}
    cells[AVERAGE] = own.cells.get(AVERAGE) if table.is_whole else None
    return cells


def _difference(own: Cell, value: str) -> str:
    """Returns ours minus the printed number.

    >>> _difference(Cell(97.04, 0.1, 3), "98.14"), _difference(Cell(98.5, None, 1), "98.1")
    ('-1.10', '+0.4')
    """
    return f"{own.mean - float(value):+.{_decimals(value)}f}"


def _decimals(value: str) -> int:
    return len(value.partition(".")[2])
