"""Tables as text, Markdown, LaTeX and CSV, and what a table shows in one sentence."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from fedvlp.results.record import Record
from fedvlp.results.tables import AVERAGE, GAP, ORACLE, SPREAD, UNTRAINED, Cell, Row, Table, costs, ranking
from fedvlp.utils.text_table import markdown_cell, markdown_table, markdown_text, text_table

TableFormat = Literal["table", "markdown", "latex"]
PAGE_WIDTH = 100  # characters
PACKAGES = ("fedvlp", "torch")
TITLE_KEYS = ("data", "protocol", "backbone")
COST_COLUMNS = ("up", "down", "bytes", "seconds")
LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"} | {"^": r"\^{}", "~": r"\~{}", "\\": r"\textbackslash{}"}
)
LEGEND = (
    "last: last round; best: round with the best mean accuracy on source validation. Nothing is chosen on the images "
    "that are compared. up, down: parameters of one client and round; bytes: both ways; seconds: all rounds of a run"
)
ORACLE_LEGEND = (
    f"{ORACLE}: each run's round with the highest accuracy on the very images that are compared, of those that "
    f"were evaluated. It is shown for its {GAP}, the points by which a table that chooses so is higher; it is no result"
)
INTERVAL_LEGEND = (
    "[low, high]: 95 % interval of a bootstrap over images, which are drawn with the predictions of all seeds; it "
    "shows how far the mean depends on these images, as the deviation shows how far it depends on the seeds"
)


@dataclass(frozen=True)
class TextTable:
    """A table whose cells are strings.

    Attributes:
        title: what the table is of.
        lines: what is between title and table.
        frame: the cells, all of them strings, with the titles of the columns.
        text_columns: number of columns with words; they come first, and the others hold numbers.
        notes: what is below the table.
    """

    title: str
    lines: Sequence[str]
    frame: pd.DataFrame
    text_columns: int = 1
    notes: Sequence[str] = ()


def format_tables(text_tables: Sequence[TextTable], form: TableFormat) -> str:
    """Returns tables below each other, two empty lines apart."""
    formatters = {"table": _text, "markdown": _markdown, "latex": _latex}
    return "\n\n\n".join(formatters[form](table) for table in text_tables)


def _text(table: TextTable) -> str:
    body = text_table([list(table.frame), *table.frame.to_numpy().tolist()], table.text_columns)
    width = max(PAGE_WIDTH, len(body.partition("\n")[0]))
    lines = [textwrap.fill(line, width, subsequent_indent="   ") for line in table.lines]
    notes = [textwrap.fill(note, width, subsequent_indent="   ") for note in table.notes]
    return "\n".join([table.title, *lines, "", body, *(["", *notes] if notes else [])])


def _markdown(table: TextTable) -> str:
    alignment = ["---"] * table.text_columns + ["---:"] * (table.frame.shape[1] - table.text_columns)
    rows = [list(map(markdown_cell, row)) for row in table.frame.to_numpy().tolist()]
    parts = [
        f"**{markdown_text(table.title)}**",
        "  \n".join(map(markdown_text, table.lines)),
        markdown_table([markdown_cell(title) for title in table.frame], alignment, rows),
        "\n".join(f"* {markdown_text(note)}" for note in table.notes),
    ]
    return "\n\n".join(part for part in parts if part)


def _latex(table: TextTable) -> str:
    """Returns a ``table`` environment for booktabs, with the notes as small print below."""
    # pandas escapes cells, but neither the caption nor what is put in by hand.
    columns = "l" * table.text_columns + "r" * (table.frame.shape[1] - table.text_columns)
    caption = f"{'. '.join([table.title, *table.lines])}.".translate(LATEX)
    body = table.frame.to_latex(index=False, escape=True, column_format=columns, caption=caption)
    notes = "".join(f"\\par\\footnotesize {note.translate(LATEX)}\n" for note in table.notes)
    return str(body).replace("\\end{table}", f"{notes}\\end{{table}}").rstrip()


def table_text(table: Table) -> TextTable:
    """Returns a table of runs for readers, in percent with one decimal."""
    # Letters only where versions differ; otherwise they would be on every row.
    versions = list(dict.fromkeys(versions_of(table.runs[method]) for method, _ in table.rows))
    marks = {version: chr(ord("a") + index) for index, version in enumerate(versions)} if len(versions) > 1 else {}
    has_oracle = any(name == ORACLE for _, name in table.rows)
    has_intervals = bool(table.cells["low"].notna().any())
    titles = {**dict.fromkeys(table.columns), AVERAGE: None} | ({} if table.measure.columns else {SPREAD: None})
    rows = []
    for row in table.rows:
        method, name = row
        records = table.runs[method]
        mark = f" [{marks[versions_of(records)]}]" if marks else ""
        accuracies = [_accuracy(table, row, column) for column in titles]
        gap = [format_gap(table.cell(row, GAP))] if has_oracle else []
        rows.append([method + mark, name, *accuracies, *gap, *_costs(records, is_trained=name != UNTRAINED)])
    # Printed under the title that says over how many domains the average is.
    shown = [table.average_title if title == AVERAGE else title for title in titles]
    head = ["method", "round", *shown, *([GAP] if has_oracle else []), *COST_COLUMNS]
    version_notes = [f"[{mark}] {version}" for version, mark in marks.items()]
    legends = [LEGEND, *([ORACLE_LEGEND] if has_oracle else []), *([INTERVAL_LEGEND] if has_intervals else [])]
    return TextTable(
        title=table_title(table.group.about),
        lines=[describe_group(table.group.about), _describe_measure(table), *legends],
        frame=pd.DataFrame(rows, columns=head),
        text_columns=2,
        notes=[*version_notes, *repeat_warnings(table), *_unmeasured(table)],
    )


def tidy(table: Table, number: int) -> pd.DataFrame:
    """Returns one row for each cell, for programs; ``std`` is the sample deviation over seeds.

    Args:
        table: the table.
        number: its own, in the column ``table``.
    """
    cells = table.cells.reset_index()
    cells["column"] = cells["column"].replace(AVERAGE, table.average_title)
    sent: list[dict[str, Any]] = []
    for method, name in table.rows:
        records = table.runs[method]
        if name == UNTRAINED:
            continue
        common = {"method": method, "round": name, "n": len(records)}
        sent += [{**common, "column": column, "mean": most} for column, (_, most) in costs(records).items()]
        sent.append({**common, "column": "seconds", "mean": _mean_seconds(records)})
    cells = pd.concat([cells, pd.DataFrame(sent)], ignore_index=True) if sent else cells
    notes = {method: versions_of(records) for method, records in table.runs.items()}
    cells = cells.assign(note=cells["method"].map(notes))
    for name, value in reversed([("table", number), *table.group.about.items(), ("source", "ours")]):
        cells.insert(0, name, value)
    return cells


def table_title(about: Mapping[str, str]) -> str:
    """Returns the title of a table of runs that have this in common."""
    return ", ".join(about[name] for name in TITLE_KEYS)


def describe_group(about: Mapping[str, str]) -> str:
    """Returns what runs have in common beside what the title says."""
    return "; ".join(f"{name}: {value}" for name, value in about.items() if name not in TITLE_KEYS)


def versions_of(records: Sequence[Record]) -> str:
    """Returns the versions of fedvlp and PyTorch of all runs."""
    parts = []
    for package in PACKAGES:
        versions = {run.versions.get(package, "not said") for run in records}
        parts.append(f"{package} {' and '.join(sorted(versions))}")
    return ", ".join(parts)


def repeat_warnings(table: Table) -> list[str]:
    """Returns a line for each method of which two runs of one seed held out the same domain; the last one counts."""
    warnings = []
    for method in dict.fromkeys(method for method, name in table.rows if name != UNTRAINED):
        measured: list[tuple[int, str]] = []
        for run in table.runs[method]:
            measured += [(run.seed, domain) for domain in run.held_out or [""]]
        if len(measured) > len(set(measured)):
            warnings.append(f"{method}: several runs of one seed measured the same domain; the last one counts")
    return warnings


def _unmeasured(table: Table) -> list[str]:
    shown = {method for method, _ in table.rows}
    return [f"{method}: not measured after any of these rounds" for method in table.runs if method not in shown]


def format_cell(cell: Cell | None, decimals: int = 1, usual_count: int | None = None) -> str:
    """Returns mean and deviation, and the number of seeds if it is not the usual one.

    >>> format_cell(Cell(62.04, 2.0, 3, 0, 0)), format_cell(Cell(62.0, math.nan, 1, 0, 0), usual_count=3)
    ('62.0 ± 2.0', '62.0 (n=1)')
    """
    if cell is None:
        return "-"
    text = f"{cell.mean:.{decimals}f}"
    if not math.isnan(cell.std):
        text += f" ± {cell.std:.{decimals}f}"
    return text if usual_count in (None, cell.n) else f"{text} (n={cell.n})"


def format_gap(gap: Cell | None) -> str:
    """Returns a difference in points with its sign, and its deviation over seeds.

    >>> format_gap(Cell(1.25, 0.5, 3, 0, 0)), format_gap(None)
    ('+1.2 ± 0.5', '-')
    """
    return "-" if gap is None else f"{'+' if gap.mean >= 0 else ''}{format_cell(gap)}"


def format_range(least: int, most: int) -> str:
    """Returns a count, or the least and the most of several.

    >>> format_range(1000, 1000), format_range(1001, 1005)
    ('1,000', '1,001-1,005')
    """
    return f"{least:,}" if least == most else f"{least:,}-{most:,}"


def _accuracy(table: Table, row: Row, column: str) -> str:
    cell = table.cell(row, column)
    # Cells of fewer seeds than the others would be read as if they were of all.
    usual_count = _most_seeds(table) if row[1] != UNTRAINED else None
    text = format_cell(cell, usual_count=usual_count)
    if cell is None or math.isnan(cell.low):
        return text
    return f"{text} [{cell.low:.1f}, {cell.high:.1f}]"


def _most_seeds(table: Table) -> int:
    trained = table.cells[table.cells.index.get_level_values("round") != UNTRAINED]
    return int(trained["n"].max()) if len(trained) else 1


def _costs(records: Sequence[Record], is_trained: bool) -> list[str]:
    if not is_trained:
        return ["-"] * len(COST_COLUMNS)
    seconds = f"{_mean_seconds(records):.0f}"
    sent = costs(records)
    if not sent:
        return ["-", "-", "-", seconds]
    both = [sum(ends) for ends in zip(sent["upload_bytes"], sent["download_bytes"], strict=True)]
    return [
        format_range(*sent["upload_parameters"]),
        format_range(*sent["download_parameters"]),
        format_range(*both),
        seconds,
    ]


def _mean_seconds(records: Sequence[Record]) -> float:
    return sum(run.seconds for run in records) / len(records)


def _describe_measure(table: Table) -> str:
    numbers = ", ".join(map(str, table.seeds))
    seeds = f"seed {numbers}"
    if len(table.seeds) > 1:
        seeds = f"mean ± sample standard deviation (n - 1) over seeds {numbers}"
    start = f"accuracy in % on {table.measure.images}; {seeds if table.seeds else 'nothing was trained'}"
    if table.measure.columns:
        return f"{start}; {table.average_title}: {table.measure.score}"
    over = "data sets" if table.role == "transfer" else "domains"
    return (
        f"{start}; average and {SPREAD} "
        f"(population standard deviation) over {over} for each seed that has all of these columns"
    )


def finding(table: Table) -> str:
    """Returns which method has the highest average after the last round, and how far it is from the others.

    A lead of no more than the two deviations over seeds together is called so, and so is a result of one seed.
    """
    rows: list[Row] = list(ranking(table).index)
    cells = {row: cell for row in rows if (cell := table.cell(row, AVERAGE)) is not None}
    trained = [row for row in rows if row[1] != UNTRAINED]
    if not rows:
        return "No method was measured on every domain, so none is called the best."
    best = rows[0]
    score = _score(cells[best], table, is_trained=best[1] != UNTRAINED)
    if not trained:
        return f"{best[0]} has {score}; no method that trains was measured on every domain."
    if best[1] == UNTRAINED:
        second = trained[0]
        points = cells[best].mean - cells[second].mean
        behind = f"{points:.1f} points behind{_doubt(cells[best], cells[second])}"
        first = f"No trained method is above {best[0]}, which has {score}"
        return f"{first}: the best of them, {second[0]}, is {behind}{_of_one_seed(cells[second])}."
    # The method is compared with the next one, and with zero-shot CLIP.
    zero_shot = [row for row in rows[2:] if row[1] == UNTRAINED]
    leads = [_lead(cells[best], other[0], cells[other]) for other in [*rows[1:2], *zero_shot[:1]]]
    compared = f": {' and '.join(leads)}" if leads else ", and no other method was measured on every domain"
    return f"{best[0]} has the highest result, {score}{compared}{_of_one_seed(cells[best])}."


def _score(cell: Cell, table: Table, is_trained: bool) -> str:
    part = "" if table.is_whole else f" ({len(table.columns)} of {table.num_columns})"
    score = f"{format_cell(cell)} % {table.measure.score}{part}"
    seeds = "one seed" if cell.n == 1 else f"{cell.n} seeds"
    return f"{score} over {seeds}" if is_trained else score


def _lead(best: Cell, name: str, other: Cell) -> str:
    points = f"{best.mean - other.mean:.1f}"
    if points == "0.0":
        return f"level with {name}"
    return f"{points} points above {name}{_doubt(best, other)}"


def _doubt(best: Cell, other: Cell) -> str:
    """Returns a remark where a lead may be chance."""
    deviations = [cell.std for cell in (best, other) if cell.n > 1]
    if deviations and best.mean - other.mean <= sum(deviations):
        return " (within the deviations over seeds, so not shown to differ)"
    return ""


def _of_one_seed(cell: Cell) -> str:
    return "" if cell.n > 1 else "; one seed does not show how much of this is chance"
