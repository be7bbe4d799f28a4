"""The papers' printed tables, with our results and the difference where a row is of the same method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedvlp.results.grouping import method_name
from fedvlp.results.papers import (
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
from fedvlp.results.printing import TextTable, format_cell
from fedvlp.results.record import ZERO_SHOT_ROW, Record
from fedvlp.results.tables import AVERAGE, ORACLE, UNTRAINED, ZERO_SHOT, Cell, Row, Table

ZERO_SHOT_NAME = "Zero-Shot CLIP"
CLIPS = {"ViT-B-16": "clip_vit_b16", "RN50": "clip_resnet50"}
"""From open_clip's name of a CLIP to the key of the same backbone among ``BACKBONES``."""

CENTRAL_METHODS = ("DoPrompt", "HCVP", "SWAD")
"""Methods that papers print as centralised; with clients they are others."""


def paper_name(method: str, options: Mapping[str, Any], training: Mapping[str, Any] | None = None) -> str:
    """Returns the papers' name of a method with its options, in their spelling; empty if they have none.

    Args:
        method: the name of its class.
        options: of the method.
        training: how clients are trained and combined, as records have it; plain averaging if not given.

    >>> paper_name("TRIP", {"num_experts": 2, "prompt_length": 1}), paper_name("PromptFL", {"kl_weight": 0.8})
    ('TRIP-Lite', '')
    >>> paper_name("ELCFS", {}, {"add_ons": [{"class": "FedDGGA"}]})
    'ELCFS+GA'
    >>> paper_name("TRIP", {}, {"add_ons": [{"class": "FedProx", "weight": 0.1}]})
    ''
    """
    name = {"SingleDomain": "Single-Domain Tuning", "FineTuning": "FedAvg"}.get(method, method)
    if method == ZERO_SHOT:
        name = ZERO_SHOT_NAME if options.get("templates", 1) == 1 else ""
    elif method == "TRIP" and (options.get("num_experts"), options.get("prompt_length")) == (2, 1):
        name = "TRIP-Lite"
    elif method == "PromptFL" and options.get("kl_weight"):
        name = ""
    # A rule of training or averaging makes another method of it, which papers name only in these cases.
    rule = _rule(training or {})
    if not rule or not name:
        return name
    if method == "FineTuning":  # papers call it by what trains and combines it
        return rule if rule in ("FedProx", "FedGMA") else ""
    return f"{name}+GA" if rule == "FedDGGA" else ""


def _rule(training: Mapping[str, Any]) -> str:
    """Returns by which rules clients are trained and combined, joined by "+"; empty for plain averaging."""
    aggregation = training.get("aggregation")
    names = [] if aggregation is None else [aggregation["class"]]
    names += [add_on["class"] for add_on in training.get("add_ons", [])]
    return "+".join(names)


def matching_tables(table: Table, wanted: Sequence[str]) -> list[PrintedTable]:
    """Returns the papers' tables of the same domains and the same kind of protocol as ours.

    Args:
        table: ours.
        wanted: the papers; all if empty.
    """
    data = table.group.records[0].data
    # A folder of images is called by its class and the folder's name, such as "DomainFolders pacs".
    key = dataset_key(str(data.get("name", "-")).split()[-1])
    if key is None:
        return []
    domains = set(map(plain_name, data.get("domains", [])))
    return [
        printed
        for printed in main_tables(wanted, key)
        if PROTOCOLS[printed.protocol] == data["kind"] and domains == set(map(plain_name, printed.domains))
    ]


def matching_rows(table: Table, method: str) -> list[Row]:
    """Returns our rows of a paper's method, without those of an oracle."""
    rows = [row for row in table.rows if row[1] != ORACLE]
    return [row for row in rows if plain_name(_printed_name(table, row)) == plain_name(method)]


def _printed_name(table: Table, row: Row) -> str:
    if row[1] == UNTRAINED:
        return ZERO_SHOT_NAME if row[0] == ZERO_SHOT_ROW else ""
    record = table.runs[row[0]][0]
    if record.is_centralised:
        return method_name(record)
    return "" if record.method in CENTRAL_METHODS else paper_name(record.method, record.options, record.training)


def paper_text(printed: PrintedTable, table: Table | None = None) -> TextTable:
    """Returns a paper's table with the numbers exactly as printed.

    Args:
        printed: the paper's table.
        table: ours, whose numbers and differences are below those of the same method; none if not given.
    """
    columns = [*printed.domains, AVERAGE]
    rows: list[list[str]] = []
    for row in printed.rows:
        cells = [row.numbers[name] + _marks(printed, row.method, name) for name in columns]
        rows.append([row.method + _marks(printed, row.method), BACKBONES[row.backbone], *cells])
        if table is not None:
            for matching in matching_rows(table, row.method):
                rows += _our_rows(table, matching, printed, row)
    head = [*(name + _marks(printed, domain=name) for name in printed.domains), AVERAGE]
    paper = papers()[printed.paper]
    shots = "all images" if printed.shots == "full" else f"{printed.shots}-shot"
    lines = [
        f"{paper['title']}; {paper['runs']}. Printed numbers, not obtained with fedvlp",
        f"{PROTOCOLS[printed.protocol]}; {shots}; split: {paper['split']}",
    ]
    return TextTable(
        title=f"{printed.name}: {DATASETS[printed.dataset]}",
        lines=lines if table is None else [*lines, _mismatch(table, printed)],
        frame=pd.DataFrame(rows, columns=["method", "backbone", *head]),
        text_columns=2,
        notes=[
            note.text if note.is_of_whole_table else f"[{number}] {note.text}"
            for number, note in enumerate(printed.footnotes, start=1)
        ],
    )


def _marks(printed: PrintedTable, method: str = "", domain: str = "") -> str:
    """Returns the numbers of the notes on a row, on a column, or on one cell alone."""
    # A note on a row marks its method, one on a column its title, and only one on both marks the number itself.
    numbers = []
    for number, note in enumerate(printed.footnotes, start=1):
        is_of_row = method in note.methods if method else not note.methods
        is_of_column = domain in note.domains if domain else not note.domains
        if is_of_row and is_of_column and not note.is_of_whole_table:
            numbers.append(str(number))
    return f" [{','.join(numbers)}]" if numbers else ""


def _our_rows(table: Table, row: Row, printed: PrintedTable, printed_row: PrintedRow) -> list[list[str]]:
    """Returns our numbers and the differences, with as many decimals as are printed."""
    numbers = []
    for name, cell in _our_cells(table, row, printed).items():
        numbers.append(format_cell(cell, _decimals(printed_row.numbers[name])))
    differences = [text or "-" for text in _differences(table, row, printed, printed_row).values()]
    label = row[0] if row[1] == UNTRAINED else f"{row[0]}, {row[1]}"
    return [
        [f"  ours: {label}", f"CLIP {table.runs[row[0]][0].clip}", *numbers],
        ["  ours - printed", "", *differences],
    ]


def _differences(table: Table, row: Row, printed: PrintedTable, printed_row: PrintedRow) -> dict[str, str]:
    """Returns ours minus the printed number of each column, such as "-1.10"; empty where ours is missing."""
    differences = {}
    for name, cell in _our_cells(table, row, printed).items():
        value = printed_row.numbers[name]
        differences[name] = "" if cell is None else f"{cell.mean - float(value):+.{_decimals(value)}f}"
    return differences


def _our_cells(table: Table, row: Row, printed: PrintedTable) -> dict[str, Cell | None]:
    """Returns our cells by the paper's names of the domains; the average only if it is over all of them."""
    # Papers and folders write one domain in several ways, such as "Real World" and "real_world".
    by_plain_name = {plain_name(name): table.cell(row, name) for name in table.columns}
    cells = {name: by_plain_name.get(plain_name(name)) for name in printed.domains}
    return cells | {AVERAGE: table.cell(row, AVERAGE) if table.is_whole else None}


def _decimals(value: str) -> int:
    return len(value.partition(".")[2])


def tidy_printed(printed: PrintedTable, number: int, table: Table | None = None) -> pd.DataFrame:
    """Returns one row for each printed number, as printed, and for each difference; columns as ``tidy`` has them.

    Args:
        printed: the paper's table.
        number: its own, in the column ``table``.
        table: ours, whose differences follow; none if not given.
    """
    rows: list[dict[str, Any]] = []
    for row in printed.rows:
        common = {"source": printed.name, "method": row.method, "backbone": BACKBONES[row.backbone]}
        common["clients"] = row.clients
        for name, value in row.numbers.items():
            notes = " ".join(note.text for note in printed.footnotes if note.is_of(row.method, name))
            rows.append({**common, "column": name, "mean": value, "note": notes})
        if table is None:
            continue
        for matching in matching_rows(table, row.method):
            ours = {**common, "source": f"ours - {printed.name}", "method": matching[0], "round": matching[1]}
            differences = _differences(table, matching, printed, row)
            rows += [{**ours, "column": name, "mean": value} for name, value in differences.items() if value]
    about = {"data": DATASETS[printed.dataset], "protocol": PROTOCOLS[printed.protocol], "shots": printed.shots}
    return pd.DataFrame(rows).assign(table=number, **about)


def _mismatch(table: Table, printed: PrintedTable) -> str:
    """Returns a line that says in what ours and the printed numbers differ beside the method."""
    record = table.group.example
    rows = [row for row in printed.rows if matching_rows(table, row.method)]
    if not rows:
        return "no row is of a method that ours has"
    # A CLIP with QuickGELU is the same backbone under another of open_clip's names.
    backbone = CLIPS.get(record.clip.removesuffix("-quickgelu"))
    others = [row for row in rows if row.backbone != backbone]
    # Where it is some rows alone, such as those that the paper quotes, these are named.
    those = f" of {', '.join(row.method for row in others)}" if 0 < len(others) < len(rows) else ""
    num_clients = _num_clients(record)
    clients = {row.clients for row in rows if row.clients and row.clients != str(num_clients)}
    shots = str(record.data.get("shots") or "full")
    parts = []
    if others:
        backbones = sorted({BACKBONES[row.backbone] for row in others})
        parts.append(f"backbone{those} (ours CLIP {record.clip}, printed {' and '.join(backbones)})")
    if shots != printed.shots:
        parts.append(f"shots (ours {shots}, printed {printed.shots})")
    if clients:
        parts.append(f"clients (ours {num_clients}, printed {' and '.join(sorted(clients))})")
    parts.append(f"split (ours {table.group.about['split']}; the paper's above)")
    rows_named = "" if shots != printed.shots else those
    warning = f": levels{rows_named} can't be compared" if others or shots != printed.shots else ""
    return f"ours and the printed differ in {', '.join(parts)}{warning}"


def _num_clients(record: Record) -> int:
    """Returns the number of clients: what the partition begins with, else one a source domain."""
    first = str(record.data.get("partition")).split()[0]
    return int(first) if first.isdigit() else len(record.data.get("domains", [])) - len(record.held_out)
