"""Pages of finished runs: one HTML file of tables, figures, configs and versions, which asks for no other file."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedvlp.results.grouping import by_settings, describe_differences, row_labels
from fedvlp.results.printing import finding, table_title
from fedvlp.results.record import Record
from fedvlp.results.tables import BEST, LAST, ORACLE, UNTRAINED, Table, ranked, ranking, tables, with_intervals
from fedvlp.tools.report.figures import compared_rows, pictures_of
from fedvlp.tools.report.sections import (
    MAX_OPEN_ROWS,
    beside_accuracy,
    classes,
    comparison,
    entries,
    ranking_table,
    runs_table,
    versions_table,
)
from fedvlp.version import __version__

MAX_PICTURE_BYTES = 3_000_000
"""How large the pictures of single runs may be together; the others are named."""

FOLDER = Path(__file__).parent


def report_page(
    records: Sequence[Record], problems: Sequence[str], heading: str, day: date, oracle: bool = False
) -> str:
    """Returns the page of a comparison.

    Args:
        records: the runs.
        problems: what could not be read, a line each.
        heading: the page's title.
        day: the page's date.
        oracle: whether tables have a row of the round that is best on the images compared, marked as not allowed.
    """
    compared = tables(records, [LAST, BEST, *([ORACLE] if oracle else [])])
    explanations, missing = _explanations(records)
    methods = sorted({record.method for record in records})
    return _render(
        "report.html.jinja",
        heading,
        day,
        num_runs=len(records),
        methods=methods,
        sections=[_section(number, table, compared) for number, table in enumerate(compared, start=1)],
        differences=describe_differences([table.about for table in compared]),
        problems=[*problems, *missing],
        explanations=explanations,
        data=[(table_title(table.about), _about(table)) for table in compared],
        runs=_runs(records),
        versions=versions_table(records),
    )


def leaderboard_page(records: Sequence[Record], root: Path, heading: str, day: date) -> str:
    """Returns the page that ranks entries.

    Args:
        records: the entries.
        root: folder of all entries, below which they are named.
        heading: the page's title.
        day: the page's date.
    """
    boards = []
    compared = tables(records, [LAST])
    for table in compared:
        rows = list(ranking(table).index)
        methods = [method for method, _ in rows]
        boards.append(
            {
                "title": table_title(table.about),
                "table": ranking_table(table) if rows else None,
                "best": 0 if len(rows) > 1 else None,
                "entries": [(row[0], entries(table.runs[row[0]], root)) for row in rows if row[1] != UNTRAINED],
                "left_out": sorted(set(table.runs) - set(methods)),
            }
        )
    differences = describe_differences([table.about for table in compared])
    return _render(
        "leaderboard.html.jinja", heading, day, num_runs=len(records), boards=boards, differences=differences
    )


def _render(template: str, heading: str, day: date, **content: Any) -> str:
    # Every value is escaped, whatever characters class names and folders have; only our own style is not.
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["counted"] = counted
    environment.filters["image"] = _data_address
    style = Markup((FOLDER / "page.css").read_text(encoding="utf-8"))
    page = environment.get_template(template)
    return page.render(heading=heading, day=day, style=style, version=__version__, **content) + "\n"


def _section(number: int, table: Table, compared: Sequence[Table]) -> dict[str, Any]:
    """Returns what the page shows of one table: the table in the order of its results, its figures, and its classes."""
    about = table.about
    ordered = ranked(table)
    rows = list(ranking(ordered).index)
    shown = {method for method, _ in compared_rows(ordered)}
    by_class = classes(ordered)
    return {
        "anchor": f"table-{number}",
        # All that a table is of is said only where there are others.
        "title": table_title(about) if len(compared) > 1 else f"{about['data']}, {about['protocol']}",
        "finding": finding(table),
        "table": comparison(ordered),
        "best": ordered.rows.index(rows[0]) if len(rows) > 1 else None,
        "figures": list(pictures_of(ordered)),
        "left_out": [method for method in table.runs if method not in shown],
        # Intervals are shown here and not in the table, which is wide enough without them.
        "beside_accuracy": beside_accuracy(with_intervals(ordered)),
        "classes": by_class,
        "classes_are_folded": by_class is not None and len(by_class.frame) > MAX_OPEN_ROWS,
        "num_open": MAX_OPEN_ROWS,
    }


def _explanations(records: Sequence[Record]) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the pictures in runs' folders, as many as the page can carry, and what is wrong with them."""
    sections: list[dict[str, Any]] = []
    problems: list[str] = []
    total_bytes = 0
    for record in records:
        pictures, missing = _saved_pictures(record.folder / "explanations")
        problems += missing
        shown = []
        for picture in pictures:
            size = picture["path"].stat().st_size
            if total_bytes + size > MAX_PICTURE_BYTES:
                problems.append(f"{picture['path']} is left out, to keep this page small.")
                continue
            total_bytes += size
            shown.append((picture, picture["path"].read_bytes()))
        if shown:
            held_out = f", {' and '.join(record.held_out)} held out" if record.held_out else ""
            sections.append({"title": f"{record.method}{held_out}, seed {record.seed}", "pictures": shown})
    return sections, problems


def _saved_pictures(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the pictures of a run with path, title, caption and alt, and what is wrong with the list of them."""
    listed = folder / "captions.json"
    if not listed.is_file():
        return [], []
    try:
        entries = json.loads(listed.read_text(encoding="utf-8"))
        pictures = [{name: entry[name] for name in ("title", "caption", "alt")} for entry in entries]
        # The name alone: a list of pictures must not lead out of its own folder.
        for picture, entry in zip(pictures, entries, strict=True):
            picture["path"] = folder / Path(entry["file"]).name
    except (ValueError, KeyError, TypeError) as error:
        return [], [f"{listed} can't be read ({error!r}). Make the explanations again."]
    missing = [picture["path"] for picture in pictures if not picture["path"].is_file()]
    problems = [f"{path} is missing. Make the explanations again." for path in missing]
    return [picture for picture in pictures if picture["path"] not in missing], problems


def _about(table: Table) -> list[tuple[str, str]]:
    """Returns data, protocol, splits and backbone of a table's runs, by name."""
    records = table.records
    data = records[0].data
    saved_seconds = sum(record.features.get("saved_seconds", 0.0) for record in records)
    splits = []
    for record in records:
        held_out = " and ".join(record.held_out)
        splits.append(f"{record.split} ({held_out} held out)" if held_out else record.split)
    return [
        *table.about.items(),
        ("domains", ", ".join(data.get("domains", table.columns))),
        ("split hashes", ", ".join(dict.fromkeys(splits))),
        ("seeds", ", ".join(map(str, table.seeds)) or "none"),
        ("runs", f"{len(records)}, {sum(record.seconds for record in records):,.0f} s of rounds"),
        ("feature cache", f"saved {saved_seconds:,.0f} s" if saved_seconds else ""),
        ("class names", ", ".join(data.get("classes", []))),
    ]


def _runs(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Returns the runs by method and settings, each with its config as YAML."""
    labels = row_labels(records)
    groups = []
    for settings, members in by_settings(records).items():
        configs = []
        for record in members:
            text = yaml.safe_dump(record.config, sort_keys=False, allow_unicode=True) if record.config else ""
            configs.append((record.folder, text))
        label = labels[settings]
        groups.append({"label": label, "table": runs_table(label, members), "configs": configs})
    return groups


def _data_address(image: bytes, kind: str) -> str:
    """Returns an image of the kind "svg" or "png" as an address that holds it."""
    media_type = {"svg": "image/svg+xml", "png": "image/png"}[kind]
    return f"data:{media_type};base64,{base64.b64encode(image).decode('ascii')}"


def counted(number: int, noun: str) -> str:
    """Returns a number of things.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
