"""Tables of results as text, Markdown, LaTeX and CSV."""

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from fedvlp.core.balance import COLUMNS, UNAVAILABLE, describe_balance
from fedvlp.results.record import BEST_ROW, CLASS_MEANS_ROW, Record
from fedvlp.tools.compare.grouping import config_name, config_rounds
from fedvlp.tools.compare.tables import AVERAGE, GAP, ORACLE, SPREAD, UNTRAINED, Cell, Table, costs, row_title
from fedvlp.utils.text_table import frame_markdown, frame_table, markdown_text

TableFormat = Literal["table", "markdown", "latex"]
PAGE_WIDTH = 100  # characters
PACKAGES = ("fedvlp", "torch")
RANKS = {1: "textbf", 2: "underline"}
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
BALANCE_LEGEND = (
    "balanced: balanced accuracy, the mean over classes of the share of their images that are classified correctly; "
    "largest class: accuracy of always predicting the class with most images"
)


@dataclass(frozen=True)
class TextTable:
    """A table of strings.

    Attributes:
        lines: Lines between title and table.
        frame: The cells, with the titles of the columns.
        text_columns: Number of columns with words; they come first, and the others hold numbers.
        notes: Lines below the table.
        caption: Caption in LaTeX. Title, lines and notes are comments if it is given.
        marks: LaTeX commands by row and column, for the best and the second number.
    """

    title: str
    lines: Sequence[str]
    frame: pd.DataFrame
    text_columns: int = 1
    notes: Sequence[str] = ()
    caption: str = ""
    marks: Mapping[tuple[int, str], str] = field(default_factory=dict)


def format_tables(text_tables: Sequence[TextTable], form: TableFormat) -> str:
    """Format tables, with two empty lines between them."""
    formatters = {"table": _text, "markdown": _markdown, "latex": _latex}
    return "\n\n\n".join(formatters[form](table) for table in text_tables)


def _text(table: TextTable) -> str:
    body = frame_table(table.frame, table.text_columns)
    width = max(PAGE_WIDTH, len(body.partition("\n")[0]))
    lines = [textwrap.fill(line, width, subsequent_indent="   ") for line in table.lines]
    notes = [textwrap.fill(note, width, subsequent_indent="   ") for note in table.notes]
    return "\n".join([table.title, *lines, "", body, *(["", *notes] if notes else [])])


def _markdown(table: TextTable) -> str:
    title = f"**{markdown_text(table.title)}**"
    lines = "  \n".join(map(markdown_text, table.lines))
    notes = "\n".join(f"* {markdown_text(note)}" for note in table.notes)
    return "\n\n".join(filter(None, [title, lines, frame_markdown(table.frame, table.text_columns), notes]))


def _latex(table: TextTable) -> str:
    """Make a ``table`` environment for booktabs, with the notes as small print below."""
    columns = "l" * table.text_columns + "r" * (table.frame.shape[1] - table.text_columns)
    cells = table.frame.map(lambda cell: cell.translate(LATEX))
    for (row, title), command in table.marks.items():
        if title in cells:
            cells.loc[row, title] = f"\\{command}{{{cells.loc[row, title]}}}"
    caption = (table.caption or f"{'. '.join([table.title, *table.lines])}.").translate(LATEX)
    # pandas would escape the commands as well.
    body = cells.rename(columns=lambda title: title.translate(LATEX)).to_latex(
        index=False, escape=False, column_format=columns, caption=caption
    )
    body = str(body).replace("\\caption", "\\centering\n\\caption", 1)
    if table.caption:
        return "".join(f"% {line}\n" for line in (table.title, *table.lines, *table.notes)) + body.rstrip()
    notes = "".join(f"\\par\\footnotesize {note.translate(LATEX)}\n" for note in table.notes)
    return body.replace("\\end{table}", f"{notes}\\end{{table}}").rstrip()


def table_text(table: Table) -> TextTable:
    """Format a table of runs for readers, in percent with one decimal."""
    has_oracle = any(name == ORACLE for _, name in table.rows)
    by_class = [title for title in COLUMNS if title in table.cells.index.get_level_values("column")]
    columns = [*table.columns, AVERAGE, *by_class, *([] if table.protocol.columns else [SPREAD])]
    # The average is printed under the title that says over how many domains it is.
    titles = [table.average_title if column == AVERAGE else column for column in columns]
    trained = table.cells[table.cells.index.get_level_values("round") != UNTRAINED]
    rows = []
    for row in table.rows:
        usual_count = int(trained["n"].max()) if row[1] != UNTRAINED else None
        accuracies = [format_cell(table.cell(row, column), usual_count=usual_count) for column in columns]
        gap = [format_gap(table.cell(row, GAP))] if has_oracle else []
        rows.append([*row, *accuracies, *gap, *_costs(table.runs[row[0]], is_trained=row[1] != UNTRAINED)])
    legends = [LEGEND]
    if by_class:
        legends.append(BALANCE_LEGEND)
    if has_oracle:
        legends.append(ORACLE_LEGEND)
    if table.cells["low"].notna().any():
        legends.append(INTERVAL_LEGEND)
    measure = _describe_measure(table)
    about = "; ".join(f"{name}: {value}" for name, value in table.about.items() if name not in TITLE_KEYS)
    return TextTable(
        title=", ".join(table.about[name] for name in TITLE_KEYS),
        lines=[about, measure, *legends],
        frame=pd.DataFrame(rows, columns=["method", "round", *titles, *([GAP] if has_oracle else []), *COST_COLUMNS]),
        text_columns=2,
        notes=[*_notes(table), *_warnings(table)],
        caption=f"{table.about['data']}, CLIP {table.records[0].clip}: {measure.partition('; average')[0]}.",
        marks=_marks(table, dict(zip(columns, titles, strict=True))),
    )


def _marks(table: Table, titles: Mapping[str, str]) -> dict[tuple[int, str], str]:
    """LaTeX commands for the best and second rounded number of each column, by row and title."""
    # An oracle is no result, and a wide spread no merit.
    means = table.cells["mean"].round(1).drop(ORACLE, level="round", errors="ignore")
    ranks: Any = means.groupby(level="column").rank(method="dense", ascending=False)
    marks = {}
    for (method, name, column), rank in ranks.items():
        if rank in RANKS and column in titles and not column.startswith(SPREAD):
            marks[table.rows.index((method, name)), titles[column]] = RANKS[rank]
    return marks


def _warnings(table: Table) -> list[str]:
    """Describe suspicious signs in the runs that the numbers do not show, a line for each kind."""
    rising: list[str] = []
    short: list[str] = []
    for method, runs in table.runs.items():
        if not any(row[0] == method and row[1] != UNTRAINED for row in table.rows):
            continue
        rounds = config_rounds(config_name(runs[0]))
        # Classifiers in closed form are finished after one round.
        if rounds != 1 and all(f"{BEST_ROW} ({run.rounds})" in run.accuracy for run in runs):
            rising.append(method)
        if runs[0].rounds < rounds:
            short.append(f"{method} {runs[0].rounds} of {rounds}")
    found = {
        "source validation was best in the last round, so more rounds may help": rising,
        "fewer rounds than in the config": short,
    }
    return [*_balance_notes(table), *(f"{kind}: {', '.join(parts)}" for kind, parts in found.items() if parts)]


def _balance_notes(table: Table) -> list[str]:
    """Describe the rows that predict a single class, are no better than chance, or lack counts by class."""
    notes: list[str] = []
    unavailable: list[str] = []
    role = table.protocol.scored_role
    for method, name in [row for row in table.rows if row[1] != ORACLE]:
        title = row_title((method, name))
        balances = [run.balance[title] for run in table.runs[method] if title in run.balance]
        label = method if name == UNTRAINED else f"{method}, {name}"
        described = [describe_balance({role: each[role]}, label) for each in balances if role in each]
        found = [line for lines in described for line in lines]
        if found:
            part = "" if len(found) == len(balances) else f" ({len(found)} of {len(balances)} runs)"
            notes.append(found[0] + part)
        if len(described) < len(balances):
            unavailable.append(label)
    return [*notes, *([f"{UNAVAILABLE}: {'; '.join(unavailable)}"] if unavailable else [])]


def _notes(table: Table) -> list[str]:
    """Name the versions of methods, if they differ, and methods that were not measured."""
    shown = dict.fromkeys(method for method, _ in table.rows)
    by_version: dict[str, list[str]] = {}
    for method in shown:
        found = {name: {run.versions.get(name, "not said") for run in table.runs[method]} for name in PACKAGES}
        version = ", ".join(f"{name} {' and '.join(sorted(versions))}" for name, versions in found.items())
        by_version.setdefault(version, []).append(method)
    versions = [f"{version}: {', '.join(methods)}" for version, methods in by_version.items()]
    # Class means do not classify the classes of some protocols.
    missing = [method for method in table.runs if method not in (*shown, CLASS_MEANS_ROW)]
    unmeasured = [f"{method}: not measured after any of these rounds" for method in missing]
    return [*(versions if len(versions) > 1 else []), *unmeasured]


def format_cell(cell: Cell | None, decimals: int = 1, usual_count: int | None = None) -> str:
    """Format mean and deviation, the number of seeds if it is unusual, and the interval if there is one.

    >>> format_cell(Cell(62.04, 2.0, 3)), format_cell(Cell(62.0, math.nan, 1, 60.0, 64.0), usual_count=3)
    ('62.0 ± 2.0', '62.0 (n=1) [60.0, 64.0]')
    """
    if cell is None:
        return "-"
    text = f"{cell.mean:.{decimals}f}"
    if not math.isnan(cell.std):
        text += f" ± {cell.std:.{decimals}f}"
    if usual_count not in (None, cell.n):
        text += f" (n={cell.n})"
    return text if math.isnan(cell.low) else f"{text} [{cell.low:.1f}, {cell.high:.1f}]"


def format_gap(gap: Cell | None) -> str:
    """Format a difference in points with its sign, and its deviation over seeds."""
    return "-" if gap is None else f"{'+' if gap.mean >= 0 else ''}{format_cell(gap)}"


def _costs(records: Sequence[Record], is_trained: bool) -> list[str]:
    if not is_trained:
        return ["-"] * len(COST_COLUMNS)
    seconds = f"{statistics.fmean(run.seconds for run in records):.0f}"
    counts = costs(records)
    if not counts:
        return ["-", "-", "-", seconds]
    num_bytes = counts["upload_bytes"] + counts["download_bytes"]
    sent = (counts["upload_parameters"], counts["download_parameters"], num_bytes)
    return [*(f"{count:,}" for count in sent), seconds]


def _describe_measure(table: Table) -> str:
    numbers = ", ".join(map(str, table.seeds))
    seeds = f"seed {numbers}" if numbers else "nothing was trained"
    if len(table.seeds) > 1:
        seeds = f"mean ± sample standard deviation (n - 1) over seeds {numbers}"
    start = f"accuracy in % on {table.protocol.images}; {seeds}"
    if table.protocol.columns:
        return f"{start}; {table.average_title}: {table.protocol.score}"
    over = "data sets" if table.role == "transfer" else "domains"
    return (
        f"{start}; average and {SPREAD} "
        f"(population standard deviation) over {over} for each seed that has all of these columns"
    )
