"""Published numbers with their footnotes, and our numbers for the same methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fedvlp.catalog.description import normalise_name
from fedvlp.core.roles import PROTOCOLS, ProtocolName
from fedvlp.results.record import ZERO_SHOT_ROW
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
    "vit_unspecified": "unspecified ViT",
    "resnet50_unspecified": "unspecified ResNet-50",
}

ZERO_SHOT_NAME = "Zero-Shot CLIP"
CLIPS = {"ViT-B-16": "clip_vit_b16", "RN50": "clip_resnet50"}
"""Keys of ``BACKBONES`` by open_clip's name of the model."""

CENTRAL_NAMES = {"PromptFL": "CoOp", "FineTuning": "ERM"}
"""The papers' names of centralised methods that differ from ours."""

CENTRAL_METHODS = ("DoPrompt", "HCVP", "SWAD")
"""Methods that the papers train centrally; with clients they are different methods."""


@dataclass(frozen=True)
class PrintedRow:
    """A row of a paper's table.

    Attributes:
        method: Name of the method in the paper.
        variant: The ablated component; empty in main tables.
        backbone: A key of ``BACKBONES``.
        clients: Number of clients; empty for centralised methods.
        numbers: Accuracies in percent by domain and as ``average``, as printed.
    """

    method: str
    variant: str
    backbone: str
    clients: str
    numbers: Mapping[str, str]


@dataclass(frozen=True)
class Footnote:
    """A note on rows and columns of tables named ``<paper> <table>``; on all rows or columns if none are given."""

    text: str
    tables: Sequence[str]
    methods: Sequence[str] = ()
    domains: Sequence[str] = ()

    def __str__(self) -> str:
        """Write the text after its rows and columns, as in ``FedPR, product: Probably 91.29.``."""
        return ": ".join(filter(None, [", ".join((*self.methods, *self.domains)), self.text]))


@dataclass(frozen=True)
class PrintedTable:
    """A part of a paper's table: the rows of one data set, protocol and number of shots.

    Attributes:
        paper: A key of ``papers``.
        table: Number of the table in the paper.
        dataset: A key of ``DATASETS``.
        shots: Training images per class, or ``full``.
    """

    paper: str
    table: str
    dataset: str
    protocol: ProtocolName
    shots: str
    rows: tuple[PrintedRow, ...]

    @property
    def name(self) -> str:
        """Title with paper and number, such as ``TRIP, Table I``."""
        return f"{papers()[self.paper]['name']}, Table {self.table}"

    @property
    def domains(self) -> list[str]:
        """The columns, in the paper's order."""
        return [name for name in self.rows[0].numbers if name != AVERAGE]

    @property
    def is_main(self) -> bool:
        """Whether the table compares complete methods on every domain, without ablations."""
        return bool(self.domains) and not any(row.variant for row in self.rows)

    @cached_property
    def footnotes(self) -> list[Footnote]:
        """The notes on the table's cells."""
        methods = {row.method for row in self.rows}
        notes = [note for note in all_footnotes() if f"{self.paper} {self.table}" in note.tables]
        # A note on several tables may name rows and columns that some of these tables lack.
        notes = [note for note in notes if not note.methods or methods.intersection(note.methods)]
        return [note for note in notes if not note.domains or self.rows[0].numbers.keys() & set(note.domains)]


@cache
def papers() -> dict[str, dict[str, str]]:
    """Read the name, title, number of runs and split of each paper."""
    return yaml.safe_load((FOLDER / "papers.yaml").read_text(encoding="utf-8"))


@cache
def all_footnotes() -> tuple[Footnote, ...]:
    """Read all notes on published tables."""
    entries = yaml.safe_load((FOLDER / "footnotes.yaml").read_text(encoding="utf-8"))
    return tuple(Footnote(**entry) for entry in entries)


@cache
def printed_tables() -> tuple[PrintedTable, ...]:
    """Read all published tables, in the order of the papers."""
    # Read as strings, to keep the printed digits.
    lines = pd.read_csv(FOLDER / "numbers.csv", dtype=str, keep_default_na=False)
    printed = []
    table: Any  # a tuple of column values
    row: Any
    for table, table_lines in lines.groupby(["paper", "table", "dataset", "protocol", "shots"], sort=False):
        rows = []
        for row, row_lines in table_lines.groupby(["method", "variant", "backbone", "clients"], sort=False):
            numbers = dict(zip(row_lines["domain"], row_lines["accuracy"], strict=True))
            rows.append(PrintedRow(*(*row, numbers)))
        printed.append(PrintedTable(*(*table, tuple(rows))))
    return tuple(printed)


def main_tables(selected_papers: Sequence[str] = (), dataset: str | None = None) -> list[PrintedTable]:
    """List the main tables, optionally of some papers or a key of ``DATASETS``; raise UserError for unknown papers."""
    if wrong := [name for name in selected_papers if name not in papers()]:
        raise UserError(f"--papers: expected names from {', '.join(papers())}; got {', '.join(wrong)}.")
    selected = [table for table in printed_tables() if table.paper in (selected_papers or papers())]
    return [table for table in selected if table.is_main and dataset in (None, table.dataset)]


def dataset_key(name: str) -> str | None:
    """Find the key of a data set in ``DATASETS``; None if no paper reports it."""
    by_plain_name = {normalise_name(key): key for key in DATASETS}
    return by_plain_name.get(normalise_name(name.removeprefix("data/")))


def paper_name(method: str, options: Mapping[str, Any], training: Mapping[str, Any]) -> str:
    """Find the papers' name of a method's class with its options and recorded ``training``; empty if there is none."""
    name = {"SingleDomain": "Single-Domain Tuning", "FineTuning": "FedAvg"}.get(method, method)
    if method == ZERO_SHOT:
        name = ZERO_SHOT_NAME if options.get("templates", 1) == 1 else ""
    elif method == "TRIP" and (options.get("num_experts"), options.get("prompt_length")) == (2, 1):
        name = "TRIP-Lite"
    elif method == "PromptFL" and options.get("kl_weight"):
        name = ""
    # An add-on or aggregator makes it a different method, which has a name only in these cases.
    rules = [rule["class"] for rule in (training.get("aggregation"), *training.get("add_ons", [])) if rule]
    if not rules or not name:
        return name
    if method == "FineTuning":  # named after its add-on or aggregator
        return rules[0] if rules in (["FedProx"], ["FedGMA"]) else ""
    return f"{name}+GA" if rules == ["FedDGGA"] else ""


def matching_tables(table: Table, selected_papers: Sequence[str]) -> list[PrintedTable]:
    """List the published tables with our domains and protocol; from all papers if ``selected_papers`` is empty."""
    data = table.records[0].data
    # Folders of images are named by class and folder, such as "DomainFolders pacs".
    key = dataset_key(str(data.get("name", "-")).split()[-1])
    if key is None:
        return []
    domains = set(map(normalise_name, data.get("domains", [])))
    candidates = [each for each in main_tables(selected_papers, key) if PROTOCOLS[each.protocol].title == data["kind"]]
    return [each for each in candidates if domains == set(map(normalise_name, each.domains))]


def matching_rows(table: Table, method: str) -> list[Row]:
    """List our rows of a paper's method, without oracle rows."""
    our_name = normalise_name(method)
    return [row for row in table.rows if row[1] != ORACLE and normalise_name(_printed_name(table, row)) == our_name]


def _printed_name(table: Table, row: Row) -> str:
    if row[1] == UNTRAINED:
        return ZERO_SHOT_NAME if row[0] == ZERO_SHOT_ROW else ""
    record = table.runs[row[0]][0]
    if record.is_centralised:
        return CENTRAL_NAMES.get(record.method, record.method)
    return "" if record.method in CENTRAL_METHODS else paper_name(record.method, record.options, record.training)


def paper_text(printed: PrintedTable, table: Table | None = None) -> TextTable:
    """Format a published table with the printed digits, and our numbers below each matching method."""
    columns = [*printed.domains, AVERAGE]
    rows: list[list[str]] = []
    for row in printed.rows:
        rows.append([row.method, BACKBONES[row.backbone], *(row.numbers[name] for name in columns)])
        if table is not None:
            for ours in matching_rows(table, row.method):
                rows += _our_rows(table, ours, row)
    paper = papers()[printed.paper]
    shots = "all images" if printed.shots == "full" else f"{printed.shots}-shot"
    lines = [
        f"{paper['title']}; {paper['runs']}. Numbers from the paper, not obtained with fedvlp",
        f"{PROTOCOLS[printed.protocol].title}; {shots}; split: {paper['split']}",
    ]
    if table is not None:
        lines.append(_mismatch(table, printed))
    frame = pd.DataFrame(rows, columns=["method", "backbone", *columns])
    title = f"{printed.name}: {DATASETS[printed.dataset]}"
    return TextTable(title, lines, frame, text_columns=2, notes=list(map(str, printed.footnotes)))


def _our_rows(table: Table, row: Row, printed: PrintedRow) -> list[list[str]]:
    # Papers and folders spell domains differently, such as "Real World" and "real_world".
    columns = {normalise_name(name): name for name in table.columns}
    if table.is_whole:  # averages are comparable only over all domains
        columns[AVERAGE] = AVERAGE
    numbers, differences = [], []
    for name, value in printed.numbers.items():
        column = columns.get(normalise_name(name))
        cell = None if column is None else table.cell(row, column)
        decimals = len(value.partition(".")[2])
        numbers.append(format_cell(cell, decimals))
        differences.append("-" if cell is None else f"{cell.mean - float(value):+.{decimals}f}")
    label = row[0] if row[1] == UNTRAINED else f"{row[0]}, {row[1]}"
    backbone = f"CLIP {table.runs[row[0]][0].clip}"
    return [[f"  ours: {label}", backbone, *numbers], ["  ours - printed", "", *differences]]


def _mismatch(table: Table, printed: PrintedTable) -> str:
    record = next((record for record in table.records if not record.is_centralised), table.records[0])
    rows = [row for row in printed.rows if matching_rows(table, row.method)]
    if not rows:
        return "no method of this table is among our runs"
    # open_clip has a separate name for the same CLIP with QuickGELU.
    backbone = CLIPS.get(record.clip.removesuffix("-quickgelu"))
    others = [row for row in rows if row.backbone != backbone]
    # Rows are named if only some differ, e.g. rows quoted from other papers.
    rows_text = f" of {', '.join(row.method for row in others)}" if 0 < len(others) < len(rows) else ""
    # The description of a partition begins with the number of clients, unless each source domain is one client.
    first = str(record.data.get("partition")).split()[0]
    num_clients = int(first) if first.isdigit() else len(record.data.get("domains", [])) - len(record.held_out)
    clients = {row.clients for row in rows if row.clients and row.clients != str(num_clients)}
    shots = str(record.data.get("shots") or "full")
    parts = []
    if others:
        backbones = sorted({BACKBONES[row.backbone] for row in others})
        parts.append(f"backbone{rows_text} (ours CLIP {record.clip}, printed {' and '.join(backbones)})")
    if shots != printed.shots:
        parts.append(f"shots (ours {shots}, printed {printed.shots})")
    if clients:
        parts.append(f"clients (ours {num_clients}, printed {' and '.join(sorted(clients))})")
    parts.append(f"split (ours {table.about['split']}; for the paper's see above)")
    affected = "" if shots != printed.shots else rows_text
    warning = f": absolute accuracies{affected} cannot be compared" if others or shots != printed.shots else ""
    return f"our runs and the paper differ in {', '.join(parts)}{warning}"
