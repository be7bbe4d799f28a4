"""The papers' printed tables, with our results and the difference where a row is of the same method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvlp.results.compare import ZERO_SHOT, Line, Table
from fedvlp.results.compare_sheets import number
from fedvlp.results.footnotes import Notes
from fedvlp.results.formats import Sheet
from fedvlp.results.papers import (
    AVERAGE,
    BACKBONES,
    DATASETS,
    PROTOCOLS,
    PrintedRow,
    PrintedTable,
    dataset_key,
    main_tables,
    papers,
    plain_name,
)
from fedvlp.results.record import Record
from fedvlp.results.statistics import Cell

ZERO_SHOT_NAME = "Zero-Shot CLIP"
CLIPS = {"ViT-B-16": "clip_vit_b16", "RN50": "clip_resnet50"}


def printed_beside(table: Table, wanted: Sequence[str]) -> list[PrintedTable]:
    """Returns the papers' tables of the same domains and the same kind of protocol as ours."""
    data = table.group.records[0].data
    key = dataset_key(str(data.get("name", "-")).split()[-1])
    found = [] if key is None else main_tables(wanted, key)
    names = {plain_name(name) for name in data.get("domains", [])}
    return [
        printed
        for printed in found
        if PROTOCOLS[printed.protocol] == data["kind"] and names == {plain_name(name) for name in printed.domains}
    ]


def printed_sheet(printed: PrintedTable, table: Table | None = None) -> Sheet:
    """Returns a paper's table, numbers exactly as printed, with ours and the difference below a method that we ran."""
    notes, about = Notes(printed), papers()[printed.paper]
    rows: list[tuple[str, ...]] = []
    for row in printed.rows:
        cells = [notes.cell(row.method, name, row.numbers[name]) for name in (*printed.domains, AVERAGE)]
        rows.append((notes.method(row.method), BACKBONES[row.backbone], *cells))
        if table is not None:
            rows += [own for line in lines_of(table, row.method) for own in _ours(table, line, printed, row)]
    shots = "all images" if printed.shots == "full" else f"{printed.shots}-shot"
    lines = (
        f"{about['title']}; {about['runs']}. Printed numbers, not obtained with fedvlp",
        f"{PROTOCOLS[printed.protocol]}; {shots}; split: {about['split']}",
        *([] if table is None else [unlike(table, printed)]),
    )
    head = ("method", "backbone", *(notes.domain(name) for name in printed.domains), AVERAGE)
    return Sheet(f"{printed.name}: {DATASETS[printed.dataset]}", lines, head, tuple(rows), 2, tuple(notes.lines))


def lines_of(table: Table, method: str) -> list[Line]:
    """Returns our rows of the method that a paper calls so."""
    return [line for line in table.lines if plain_name(printed_name(line)) == plain_name(method)]


def printed_name(line: Line) -> str:
    """Returns what papers call the method of one of our rows; empty if they have none such."""
    if not line.selection:
        return ZERO_SHOT_NAME if line.label == "zero-shot CLIP" else ""
    return paper_name(line.records[0].method, line.records[0].options)


def paper_name(method: str, options: Mapping[str, Any]) -> str:
    """Returns what papers call a method with its options, in capitals and signs as they like; empty if they have none.

    >>> paper_name("TRIP", {"num_experts": 2, "prompt_length": 1}), paper_name("PromptFL", {"kl_weight": 0.8})
    ('TRIP-Lite', '')
    """
    if method == ZERO_SHOT:
        return ZERO_SHOT_NAME if options.get("templates", 1) == 1 else ""
    if method == "TRIP" and (options.get("num_experts"), options.get("prompt_length")) == (2, 1):
        return "TRIP-Lite"
    if method == "PromptFL" and options.get("kl_weight"):
        return ""
    return "Single-Domain Tuning" if method == "SingleDomain" else method


def unlike(table: Table, printed: PrintedTable) -> str:
    """Returns a line that says in what ours and the printed numbers differ beside the method."""
    record = table.group.records[0]
    rows = [row for row in printed.rows if lines_of(table, row.method)]
    if not rows:
        return "no row is of a method that ours has"
    clip = CLIPS.get(record.clip.removesuffix("-quickgelu"))
    backbones = {BACKBONES[row.backbone] for row in rows if row.backbone != clip}
    clients = {row.clients for row in rows if row.clients and row.clients != str(_clients(record))}
    shots = str(record.data.get("shots") or "full")
    parts = [f"backbone (ours CLIP {record.clip}, printed {' and '.join(sorted(backbones))})"] if backbones else []
    parts += [f"shots (ours {shots}, printed {printed.shots})"] if shots != printed.shots else []
    parts += [f"clients (ours {_clients(record)}, printed {' and '.join(sorted(clients))})"] if clients else []
    parts += [f"split (ours {table.group.about['split']}; the paper's above)"]
    level = ": levels can't be compared" if backbones or shots != printed.shots else ""
    return f"ours and the printed differ in {', '.join(parts)}{level}"


def tidy_printed(printed: PrintedTable, which: int, table: Table | None = None) -> list[dict[str, Any]]:
    """Returns one row for each printed number, as printed, and for each difference; keys as for our own tables."""
    notes = Notes(printed)
    common = {"data": DATASETS[printed.dataset], "protocol": PROTOCOLS[printed.protocol], "shots": printed.shots}
    found: list[dict[str, Any]] = []
    for row in printed.rows:
        own = {"table": which, **common, "backbone": BACKBONES[row.backbone], "clients": row.clients}
        for name, value in row.numbers.items():
            cell = {"source": printed.name, "method": row.method, "mean": value, "note": notes.texts(row.method, name)}
            found.append(own | {"column": name} | cell)
        found += [] if table is None else _tidy_differences(printed, row, table, own)
    return found


def _tidy_differences(
    printed: PrintedTable, row: PrintedRow, table: Table, own: dict[str, Any]
) -> list[dict[str, Any]]:
    """Returns one row for each difference of ours from the numbers of a printed row."""
    found = []
    for line in lines_of(table, row.method):
        less = own | {"source": f"ours - {printed.name}", "method": line.label, "round": line.selection}
        for name, ours in _cells_of(line, printed, table).items():
            if ours is not None:
                found.append(less | {"column": name, "mean": _difference(ours, row.numbers[name]), "n": ours.count})
    return found


def _ours(table: Table, line: Line, printed: PrintedTable, row: PrintedRow) -> list[tuple[str, ...]]:
    """Returns our numbers and the differences, with as many decimals as are printed."""
    cells = _cells_of(line, printed, table)
    ours = [number(cell, _decimals(row.numbers[name])) for name, cell in cells.items()]
    differences = ["-" if cell is None else _difference(cell, row.numbers[name]) for name, cell in cells.items()]
    label = f"{line.label}, {line.selection}" if line.selection else line.label
    return [(f"  ours: {label}", f"CLIP {line.records[0].clip}", *ours), ("  ours - printed", "", *differences)]


def _cells_of(line: Line, printed: PrintedTable, table: Table) -> dict[str, Cell | None]:
    """Returns our cells by the paper's names of the domains; the average only if it is over all of them."""
    by_name = {plain_name(name): line.cells.get(name) for name in table.domains}
    found = {name: by_name.get(plain_name(name)) for name in printed.domains}
    return found | {AVERAGE: line.cells.get(AVERAGE) if table.is_whole else None}


def _difference(ours: Cell, value: str) -> str:
    """Returns ours minus the printed number.

    >>> _difference(Cell(97.04, 0.1, 3), "98.14"), _difference(Cell(98.5, None, 1), "98.1")
    ('-1.10', '+0.4')
    """
    return f"{ours.mean - float(value):+.{_decimals(value)}f}"


def _decimals(value: str) -> int:
    """Returns with how many decimals a number is printed."""
    return len(value.partition(".")[2])


def _clients(record: Record) -> int:
    """Returns the number of clients."""
    first = str(record.data.get("partition")).split()[0]
    return int(first) if first.isdigit() else len(record.data.get("domains", [])) - len(record.held_out)
