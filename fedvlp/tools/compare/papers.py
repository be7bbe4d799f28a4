"""The numbers that papers print, what a reader must know about them, and ours beside them for the same method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fedvlp.core.roles import PROTOCOLS, ProtocolName
from fedvlp.results.record import ZERO_SHOT_ROW, Record
from fedvlp.tools.compare.printing import TextTable, format_cell
from fedvlp.tools.compare.tables import AVERAGE, ORACLE, UNTRAINED, ZERO_SHOT, Row, Table
from fedvlp.utils.errors import UserError

FOLDER = Path(__file__).with_name("printed")
DATASETS = {"pacs": "PACS", "office_home": "OfficeHome", "vlcs": "VLCS", "domainnet": "DomainNet"}
BACKBONES = {
    "clip_vit_b16": "CLIP ViT-B/16",
    "clip_resnet50": "CLIP ResNet-50",
    "vit_b16_imagenet1k": "ViT-B/16, ImageNet",
    "resnet50_imagenet1k": "ResNet-50, ImageNet",
    "vit_unspecified": "a ViT, not said which",
    "resnet50_unspecified": "a ResNet-50, not said which",
}
TABLE = ["paper", "table", "dataset", "protocol", "shots"]
ROW = ["method", "variant", "backbone", "clients"]

ZERO_SHOT_NAME = "Zero-Shot CLIP"
CLIPS = {"ViT-B-16": "clip_vit_b16", "RN50": "clip_resnet50"}
"""From open_clip's name of a CLIP to the key of the same backbone among ``BACKBONES``."""

CENTRAL_NAMES = {"PromptFL": "CoOp", "FineTuning": "ERM"}
"""What papers call methods where they are centralised, if they call them otherwise."""

CENTRAL_METHODS = ("DoPrompt", "HCVP", "SWAD")
"""Methods that papers print as centralised; with clients they are others."""


@dataclass(frozen=True)
class PrintedRow:
    """A row of a paper's table.

    Attributes:
        method: the paper's name of the method.
        variant: what an ablation changes; empty in main tables.
        backbone: a key of ``BACKBONES``.
        clients: their number; empty if nothing is federated.
        numbers: accuracies in percent by domain and as ``average``, as printed.
    """

    method: str
    variant: str
    backbone: str
    clients: str
    numbers: Mapping[str, str]


@dataclass(frozen=True)
class Footnote:
    """A note on cells of papers' tables.

    Attributes:
        text: the note.
        tables: ``<paper> <table>`` of each table that it is of.
        methods: whose rows; all if empty.
        domains: which columns; whole rows if empty.
    """

    text: str
    tables: Sequence[str]
    methods: Sequence[str]
    domains: Sequence[str]

    @property
    def is_of_whole_table(self) -> bool:
        """Whether the note is of no row and no column in particular."""
        return not self.methods and not self.domains

    def is_of(self, method: str, *domains: str) -> bool:
        """Whether the note is of a cell of the method in any of the columns."""
        is_of_column = not self.domains or bool(set(self.domains).intersection(domains))
        return is_of_column and (not self.methods or method in self.methods)


@dataclass(frozen=True)
class PrintedTable:
    """A part of a paper's table: the rows of one data set, protocol and number of shots.

    Attributes:
        paper: a key of ``papers``.
        table: the paper's number of the table.
        dataset: a key of ``DATASETS``.
        protocol: a key of ``PROTOCOLS``.
        shots: training images of each class, or ``full``.
        rows: the rows, in the paper's order.
    """

    paper: str
    table: str
    dataset: str
    protocol: ProtocolName
    shots: str
    rows: tuple[PrintedRow, ...]

    @property
    def name(self) -> str:
        """Paper and table, such as ``TRIP, Table I``."""
        return f"{papers()[self.paper]['name']}, Table {self.table}"

    @property
    def domains(self) -> list[str]:
        """The columns, in the paper's order."""
        return [name for name in self.rows[0].numbers if name != AVERAGE]

    @property
    def is_main(self) -> bool:
        """Whether it has whole methods, with a number for every domain, and no ablation."""
        return bool(self.domains) and not any(row.variant for row in self.rows)

    @cached_property
    def footnotes(self) -> list[Footnote]:
        """The notes on any of its cells, numbered from 1 in this order; those of the whole table are last."""
        notes = []
        for note in all_footnotes():
            # One entry of the file names several tables, and some of its rows and columns are in one of them alone.
            is_shown = any(note.is_of(row.method, *row.numbers) for row in self.rows)
            if is_shown and f"{self.paper} {self.table}" in note.tables:
                notes.append(note)
        return sorted(notes, key=lambda note: note.is_of_whole_table)

    def marks(self, method: str = "", domain: str = "") -> str:
        """Returns the numbers of the notes on a row, on a column, or on one cell alone, such as `` [1,2]``."""
        # A note on a row marks its method, one on a column its title, and only one on both marks the number itself.
        numbers = []
        for number, note in enumerate(self.footnotes, start=1):
            is_of_row = method in note.methods if method else not note.methods
            is_of_column = domain in note.domains if domain else not note.domains
            if is_of_row and is_of_column and not note.is_of_whole_table:
                numbers.append(str(number))
        return f" [{','.join(numbers)}]" if numbers else ""


@cache
def papers() -> dict[str, dict[str, str]]:
    """Returns name, title, number of runs and split of each paper."""
    content: dict[str, dict[str, str]] = yaml.safe_load((FOLDER / "papers.yaml").read_text(encoding="utf-8"))
    return content


@cache
def all_footnotes() -> tuple[Footnote, ...]:
    """Returns every note on papers' tables."""
    entries = yaml.safe_load((FOLDER / "footnotes.yaml").read_text(encoding="utf-8"))
    return tuple(
        Footnote(entry["text"], entry["in"], entry.get("methods", ()), entry.get("domains", ())) for entry in entries
    )


@cache
def printed_tables() -> tuple[PrintedTable, ...]:
    """Returns all printed tables, in the order of the papers."""
    # As strings, with the digits that are printed; the file has the papers' order of tables, rows and columns.
    lines = pd.read_csv(FOLDER / "numbers.csv", dtype=str, keep_default_na=False)
    printed = []
    table: Any  # pandas types keys as scalars; those of several columns are tuples of them
    row: Any
    for table, of_table in lines.groupby(TABLE, sort=False):
        rows = []
        for row, of_row in of_table.groupby(ROW, sort=False):
            numbers = dict(zip(of_row["domain"], of_row["accuracy"], strict=True))
            rows.append(PrintedRow(*(*row, numbers)))
        printed.append(PrintedTable(*(*table, tuple(rows))))
    return tuple(printed)


def main_tables(wanted: Sequence[str] = (), dataset: str | None = None) -> list[PrintedTable]:
    """Returns the main tables of these papers and of this key of ``DATASETS``; of all where none is given.

    Raises:
        UserError: if there is no such paper.
    """
    if wrong := [name for name in wanted if name not in papers()]:
        raise UserError(f"Expected papers among {', '.join(papers())}; got {', '.join(wrong)}.")
    main = [table for table in printed_tables() if table.is_main and table.paper in (wanted or papers())]
    return [table for table in main if dataset in (None, table.dataset)]


def dataset_key(name: str) -> str | None:
    """Returns the key of ``DATASETS`` of a data set; None if no paper prints numbers of it."""
    by_plain_name = {plain_name(key): key for key in DATASETS}
    return by_plain_name.get(plain_name(name.removeprefix("data/")))


def plain_name(name: str) -> str:
    """Returns the letters and digits of a name in lower case, as papers write one name in several ways.

    >>> plain_name("Real World") == plain_name("real_world")
    True
    """
    return "".join(letter for letter in name.lower() if letter.isalnum())


def paper_name(method: str, options: Mapping[str, Any], training: Mapping[str, Any]) -> str:
    """Returns the papers' name of a method's class with its options, in their spelling; empty if they have none.

    ``training`` is as records have it: how clients are trained and combined.
    """
    name = {"SingleDomain": "Single-Domain Tuning", "FineTuning": "FedAvg"}.get(method, method)
    if method == ZERO_SHOT:
        name = ZERO_SHOT_NAME if options.get("templates", 1) == 1 else ""
    elif method == "TRIP" and (options.get("num_experts"), options.get("prompt_length")) == (2, 1):
        name = "TRIP-Lite"
    elif method == "PromptFL" and options.get("kl_weight"):
        name = ""
    # A rule of training or averaging makes another method of it, which papers name only in these cases.
    rules = [rule["class"] for rule in (training.get("aggregation"), *training.get("add_ons", [])) if rule]
    if not rules or not name:
        return name
    if method == "FineTuning":  # papers call it by what trains and combines it
        return rules[0] if rules in (["FedProx"], ["FedGMA"]) else ""
    return f"{name}+GA" if rules == ["FedDGGA"] else ""


def matching_tables(table: Table, wanted: Sequence[str]) -> list[PrintedTable]:
    """Returns the papers' tables of the domains and the kind of protocol of ours; of all papers if none is wanted."""
    data = table.records[0].data
    # A folder of images is called by its class and the folder's name, such as "DomainFolders pacs".
    key = dataset_key(str(data.get("name", "-")).split()[-1])
    if key is None:
        return []
    domains = set(map(plain_name, data.get("domains", [])))
    of_protocol = [each for each in main_tables(wanted, key) if PROTOCOLS[each.protocol].title == data["kind"]]
    return [each for each in of_protocol if domains == set(map(plain_name, each.domains))]


def matching_rows(table: Table, method: str) -> list[Row]:
    """Returns our rows of a paper's method, without those of an oracle."""
    rows = [row for row in table.rows if row[1] != ORACLE]
    return [row for row in rows if plain_name(_printed_name(table, row)) == plain_name(method)]


def _printed_name(table: Table, row: Row) -> str:
    if row[1] == UNTRAINED:
        return ZERO_SHOT_NAME if row[0] == ZERO_SHOT_ROW else ""
    record = table.runs[row[0]][0]
    if record.is_centralised:
        return CENTRAL_NAMES.get(record.method, record.method)
    return "" if record.method in CENTRAL_METHODS else paper_name(record.method, record.options, record.training)


def paper_text(printed: PrintedTable, table: Table | None = None) -> TextTable:
    """Returns a paper's table with the numbers exactly as printed, and ours below those of the same method."""
    columns = [*printed.domains, AVERAGE]
    rows: list[list[str]] = []
    for row in printed.rows:
        cells = [row.numbers[name] + printed.marks(row.method, name) for name in columns]
        rows.append([row.method + printed.marks(row.method), BACKBONES[row.backbone], *cells])
        if table is not None:
            for ours in matching_rows(table, row.method):
                rows += _our_rows(table, ours, row)
    paper = papers()[printed.paper]
    shots = "all images" if printed.shots == "full" else f"{printed.shots}-shot"
    lines = [
        f"{paper['title']}; {paper['runs']}. Printed numbers, not obtained with fedvlp",
        f"{PROTOCOLS[printed.protocol].title}; {shots}; split: {paper['split']}",
    ]
    titles = ["method", "backbone", *(name + printed.marks(domain=name) for name in printed.domains), AVERAGE]
    return TextTable(
        title=f"{printed.name}: {DATASETS[printed.dataset]}",
        lines=lines if table is None else [*lines, _mismatch(table, printed)],
        frame=pd.DataFrame(rows, columns=titles),
        text_columns=2,
        notes=[
            note.text if note.is_of_whole_table else f"[{number}] {note.text}"
            for number, note in enumerate(printed.footnotes, start=1)
        ],
    )


def _our_rows(table: Table, row: Row, printed: PrintedRow) -> list[list[str]]:
    """Our numbers and the differences from the printed ones, with as many decimals as are printed."""
    # Papers and folders spell domains differently, such as "Real World" and "real_world".
    columns = {plain_name(name): name for name in table.columns}
    if table.is_whole:  # our average compares only if it is over all domains
        columns[AVERAGE] = AVERAGE
    numbers, differences = [], []
    for name, value in printed.numbers.items():
        column = columns.get(plain_name(name))
        cell = None if column is None else table.cell(row, column)
        decimals = len(value.partition(".")[2])
        numbers.append(format_cell(cell, decimals))
        differences.append("-" if cell is None else f"{cell.mean - float(value):+.{decimals}f}")
    label = row[0] if row[1] == UNTRAINED else f"{row[0]}, {row[1]}"
    backbone = f"CLIP {table.runs[row[0]][0].clip}"
    return [[f"  ours: {label}", backbone, *numbers], ["  ours - printed", "", *differences]]


def _mismatch(table: Table, printed: PrintedTable) -> str:
    """Returns a line that says in what ours and the printed numbers differ beside the method."""
    record = next((record for record in table.records if not record.is_centralised), table.records[0])
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
    parts.append(f"split (ours {table.about['split']}; the paper's above)")
    rows_named = "" if shots != printed.shots else those
    warning = f": levels{rows_named} can't be compared" if others or shots != printed.shots else ""
    return f"ours and the printed differ in {', '.join(parts)}{warning}"


def _num_clients(record: Record) -> int:
    """Returns the number of clients: what the partition begins with, else one a source domain."""
    first = str(record.data.get("partition")).split()[0]
    return int(first) if first.isdigit() else len(record.data.get("domains", [])) - len(record.held_out)
