"""The numbers that papers print, exactly as printed, and what a reader must know about them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from fedvlp.results.tables import AVERAGE
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
PROTOCOLS = {"leave_one_domain_out": "leave-domains-out", "all_domains": "all domains seen"}


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
    protocol: str
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

    @property
    def footnotes(self) -> list[Footnote]:
        """The notes on any of its cells, numbered from 1 in this order; those of the whole table are last."""
        notes = [note for note in all_footnotes() if f"{self.paper} {self.table}" in note.tables]
        # One entry of the file names several tables, and some of its rows and columns are in one of them alone.
        return sorted(filter(self._has_cells_of, notes), key=lambda note: note.is_of_whole_table)

    def _has_cells_of(self, note: Footnote) -> bool:
        return any(note.is_of(row.method, *row.numbers) for row in self.rows)


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
    tables: tuple[str, ...]
    methods: tuple[str, ...]
    domains: tuple[str, ...]

    @property
    def is_of_whole_table(self) -> bool:
        """Whether the note is of no row and no column in particular."""
        return not self.methods and not self.domains

    def is_of(self, method: str, *domains: str) -> bool:
        """Whether the note is of a cell of the method in any of the columns."""
        is_of_column = not self.domains or bool(set(self.domains).intersection(domains))
        return (not self.methods or method in self.methods) and is_of_column


@cache
def papers() -> dict[str, dict[str, str]]:
    """Returns name, title, number of runs and split of each paper."""
    content: dict[str, dict[str, str]] = yaml.safe_load((FOLDER / "papers.yaml").read_text(encoding="utf-8"))
    return content


@cache
def all_footnotes() -> tuple[Footnote, ...]:
    """Returns every note on papers' tables."""
    entries = yaml.safe_load((FOLDER / "footnotes.yaml").read_text(encoding="utf-8"))
    notes = []
    for entry in entries:
        parts = [tuple(entry.get(name, [])) for name in ("in", "methods", "domains")]
        notes.append(Footnote(entry["text"], *parts))
    return tuple(notes)


@cache
def printed_tables() -> tuple[PrintedTable, ...]:
    """Returns all printed tables, in the order of the papers."""
    with (FOLDER / "numbers.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    # One line of the file is one number; dictionaries keep the papers' order of tables, rows and columns.
    tables: dict[tuple[str, ...], dict[tuple[str, ...], dict[str, str]]] = {}
    for line in lines:
        table = tuple(line[name] for name in ("paper", "table", "dataset", "protocol", "shots"))
        row = tuple(line[name] for name in ("method", "variant", "backbone", "clients"))
        tables.setdefault(table, {}).setdefault(row, {})[line["domain"]] = line["accuracy"]
    printed = []
    for table, rows in tables.items():
        paper, number, dataset, protocol, shots = table
        of_table = []
        for (method, variant, backbone, clients), numbers in rows.items():
            of_table.append(PrintedRow(method, variant, backbone, clients, numbers))
        printed.append(PrintedTable(paper, number, dataset, protocol, shots, tuple(of_table)))
    return tuple(printed)


def main_tables(wanted: Sequence[str] = (), dataset: str | None = None) -> list[PrintedTable]:
    """Returns the main tables of papers.

    Args:
        wanted: the papers; all if empty.
        dataset: a data set's name, however it is written; all if not given.

    Raises:
        UserError: if there is no such paper, or no paper prints numbers of the data set.
    """
    if wrong := [name for name in wanted if name not in papers()]:
        raise UserError(f"Expected papers among {', '.join(papers())}; got {', '.join(wrong)}.")
    key = None if dataset is None else dataset_key(dataset)
    if dataset is not None and key is None:
        raise UserError(f"No paper prints numbers of {dataset!r}; there are {', '.join(DATASETS)}.")
    return [
        table
        for table in printed_tables()
        if table.is_main and table.paper in (wanted or papers()) and key in (None, table.dataset)
    ]


def dataset_key(name: str) -> str | None:
    """Returns the key of ``DATASETS`` of a data set; None if no paper prints numbers of it.

    >>> dataset_key("OfficeHome"), dataset_key("data/domain_net"), dataset_key("DomainNet10")
    ('office_home', 'domainnet', None)
    """
    by_plain_name = {plain_name(key): key for key in DATASETS}
    return by_plain_name.get(plain_name(name.removeprefix("data/")))


def plain_name(name: str) -> str:
    """Returns the letters and digits of a name in lower case, as papers write one name in several ways.

    >>> plain_name("Real World") == plain_name("real_world")
    True
    """
    return "".join(letter for letter in name.lower() if letter.isalnum())
