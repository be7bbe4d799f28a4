"""Which of our rows are of a method that papers print numbers of, and in what else ours and the printed differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvlp.results.compare import ZERO_SHOT, Table, TableRow
from fedvlp.results.labels import method_name
from fedvlp.results.papers import (
    BACKBONES,
    PROTOCOLS,
    PrintedRow,
    PrintedTable,
    dataset_key,
    main_tables,
    plain_name,
)
from fedvlp.results.record import Record

ZERO_SHOT_NAME = "Zero-Shot CLIP"
CLIPS = {"ViT-B-16": "clip_vit_b16", "RN50": "clip_resnet50"}
"""From open_clip's name of a CLIP to the key of the same backbone among ``BACKBONES``."""


CENTRAL_METHODS = ("DoPrompt", "HCVP", "SWAD")
"""Methods that papers print as centralised; with clients they are others."""


def matching_printed_tables(table: Table, wanted: Sequence[str]) -> list[PrintedTable]:
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
    domains = _plain_names(data.get("domains", []))
    return [
        printed
        for printed in main_tables(wanted, key)
        if PROTOCOLS[printed.protocol] == data["kind"] and domains == _plain_names(printed.domains)
    ]


def _plain_names(names: Sequence[str]) -> set[str]:
    return {plain_name(name) for name in names}


def matching_rows(table: Table, method: str) -> list[TableRow]:
    """Returns our rows of the method that a paper calls so, but none of an oracle."""
    reported = [row for row in table.rows if row.selection != "oracle"]
    return [row for row in reported if plain_name(printed_name(row)) == plain_name(method)]


def printed_name(row: TableRow) -> str:
    """Returns what papers call the method of one of our rows; empty if they have none such."""
    if not row.is_trained:
        return ZERO_SHOT_NAME if row.label == "zero-shot CLIP" else ""
    record = row.records[0]
    if record.is_centralised:
        return method_name(record)
    return "" if record.method in CENTRAL_METHODS else paper_name(record.method, record.options, record.training)


def paper_name(method: str, options: Mapping[str, Any], training: Mapping[str, Any] | None = None) -> str:
    """Returns what papers call a method with its options, in capitals and signs as they like; empty if they have none.

    Args:
        method: The name of its class.
        options: Of the method.
        training: How clients are trained and combined, by the names that records have; as usual if not given.

    >>> paper_name("TRIP", {"num_experts": 2, "prompt_length": 1}), paper_name("PromptFL", {"kl_weight": 0.8})
    ('TRIP-Lite', '')
    >>> paper_name("ELCFS", {}, {"add_ons": [{"class": "FedDGGA"}]})
    'ELCFS+GA'
    >>> paper_name("TRIP", {}, {"add_ons": [{"class": "FedProx", "weight": 0.1}]})
    ''
    """
    name = _name_of_options(method, options)
    rule = _given_rule(training or {})
    if not rule or not name:
        return name
    if method == "FineTuning":  # papers call it by what trains and combines it
        return rule if rule in ("FedProx", "FedGMA") else ""
    return f"{name}+GA" if rule == "FedDGGA" else ""


def _name_of_options(method: str, options: Mapping[str, Any]) -> str:
    """Returns what papers call a method that is trained and combined as usual; empty if they have none."""
    if method == ZERO_SHOT:
        return ZERO_SHOT_NAME if options.get("templates", 1) == 1 else ""
    if method == "TRIP" and (options.get("num_experts"), options.get("prompt_length")) == (2, 1):
        return "TRIP-Lite"
    if method == "PromptFL" and options.get("kl_weight"):
        return ""
    return {"SingleDomain": "Single-Domain Tuning", "FineTuning": "FedAvg"}.get(method, method)


def _given_rule(training: Mapping[str, Any]) -> str:
    """Returns by which rule clients are trained or combined, of several all; empty for none."""
    aggregation = training.get("aggregation")
    names = [] if aggregation is None else [aggregation["class"]]
    names += [add_on["class"] for add_on in training.get("add_ons", [])]
    return "+".join(names)


def describe_mismatch(table: Table, printed: PrintedTable) -> str:
    """Returns a line that says in what ours and the printed numbers differ beside the method."""
    record = table.group.example
    rows = [row for row in printed.rows if matching_rows(table, row.method)]
    if not rows:
        return "no row is of a method that ours has"
    others = _of_other_backbones(record, rows)
    # Of some rows alone, such as those that the paper quotes, it is said of which.
    those = f" of {', '.join(row.method for row in others)}" if 0 < len(others) < len(rows) else ""
    clients = {row.clients for row in rows if row.clients and row.clients != str(_num_clients(record))}
    shots = str(record.data.get("shots") or "full")
    parts = []
    if others:
        backbones = sorted({BACKBONES[row.backbone] for row in others})
        parts.append(f"backbone{those} (ours CLIP {record.clip}, printed {' and '.join(backbones)})")
    if shots != printed.shots:
        parts.append(f"shots (ours {shots}, printed {printed.shots})")
    if clients:
        parts.append(f"clients (ours {_num_clients(record)}, printed {' and '.join(sorted(clients))})")
    parts.append(f"split (ours {table.group.about['split']}; the paper's above)")
    of_which = "" if shots != printed.shots else those
    warning = f": levels{of_which} can't be compared" if others or shots != printed.shots else ""
    return f"ours and the printed differ in {', '.join(parts)}{warning}"


def _of_other_backbones(record: Record, rows: Sequence[PrintedRow]) -> list[PrintedRow]:
    # A CLIP with QuickGELU is the same backbone under another of open_clip's names.
    own = CLIPS.get(record.clip.removesuffix("-quickgelu"))
    return [row for row in rows if row.backbone != own]


def _num_clients(record: Record) -> int:
    """Returns the number of clients: what the partition begins with, else one a source domain."""
    first = str(record.data.get("partition")).split()[0]
    return int(first) if first.isdigit() else len(record.data.get("domains", [])) - len(record.held_out)
