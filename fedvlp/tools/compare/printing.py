"""Tables of results as text, Markdown, LaTeX and CSV."""

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from fedvlp.core.balance import COLUMNS, TAIL, TAIL_LEGEND, UNAVAILABLE, describe_balance
from fedvlp.core.predictions import LABEL_COLUMNS, LABEL_SCORES_LEGEND, TWO_CLASSES, TWO_CLASSES_LEGEND
from fedvlp.core.roles import BASELINES, SELECTION_METRICS
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
    "last: last round; best: round with the best mean {selection} on source validation. The compared images select "
    "nothing. up, down: parameters per client and round; bytes: up and down; seconds: all rounds of a run"
)
ORACLE_LEGEND = (
    f"{ORACLE}: each run's evaluated round with the highest accuracy on the compared images. It is not a valid result. "
    f"Its {GAP} is the number of points by which a table that selects rounds in this way is too high"
)
INTERVAL_LEGEND = (
    "[low, high]: 95 % bootstrap interval over {resampled}, each drawn with the predictions of all seeds. It shows how "
    "much the mean depends on these images; the deviation shows how much it depends on the seeds"
)
BALANCE_LEGEND = (
    "balanced: balanced accuracy, the mean of the classes' accuracies; "
    "largest class: accuracy of always predicting the class with most images"
)


@dataclass(frozen=True)
class TextTable:
    """A table of strings.

    Attributes:
        lines: Lines between the title and the table.
        frame: The cells, with column titles.
        text_columns: Number of leading columns with text; the other columns contain numbers.
        notes: Lines below the table.
        caption: Caption in LaTeX. If it is given, title, lines and notes become comments.
        marks: LaTeX commands by row and column, for the best and second-best number.
    """

    title: str
    lines: Sequence[str]
    frame: pd.DataFrame
    text_columns: int = 1
    notes: Sequence[str] = ()
    caption: str = ""
    marks: Mapping[tuple[int, str], str] = field(default_factory=dict)


def format_tables(text_tables: Sequence[TextTable], form: TableFormat) -> str:
    """Format tables, separated by two empty lines."""
    formatters = {"table": _text, "markdown": _markdown, "latex": _latex}
    return "\n\n\n".join(formatters[form](table) for table in text_tables)


def format_csv(compared: Sequence[Table]) -> str:
    """Format tables of runs as one CSV with a row per method and round.

    Columns: mean accuracies in percent by domain, with ``std`` over seeds, and ``low`` and ``high`` of intervals; the
    number of seeds; parameters and bytes per client and round, mean seconds; the table's settings.
    """
    rows: list[dict[str, Any]] = []
    for table in compared:
        for (method, name), part in table.cells.groupby(["method", "round"], sort=False):
            cells: dict[str, float] = {}
            for column, fields in part.droplevel(["method", "round"]).drop(columns="n").iterrows():
                title = table.average_title if column == AVERAGE else str(column)
                cells |= {f"{title} {field}".removesuffix(" mean"): value for field, value in fields.items()}
            runs = table.runs[method] if name != UNTRAINED else ()
            used = {**costs(runs), **({"seconds": statistics.fmean(run.seconds for run in runs)} if runs else {})}
            rows.append({"method": method, "round": name, "seeds": part["n"].max(), **cells, **used, **table.about})
    # Intervals that were not computed, and deviations of single seeds, have no column.
    frame = pd.DataFrame(rows).dropna(axis="columns", how="all").round(4)
    return str(frame.convert_dtypes().to_csv(index=False, lineterminator="\n"))


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
    columns = "l" * table.text_columns + "r" * (table.frame.shape[1] - table.text_columns)
    cells = table.frame.map(lambda cell: cell.translate(LATEX))
    for (row, title), command in table.marks.items():
        if title in cells:
            cells.loc[row, title] = f"\\{command}{{{cells.loc[row, title]}}}"
    caption = (table.caption or f"{'. '.join([table.title, *table.lines])}.").translate(LATEX)
    # pandas would also escape the commands.
    body = cells.rename(columns=lambda title: title.translate(LATEX)).to_latex(
        index=False, escape=False, column_format=columns, caption=caption
    )
    body = str(body).replace("\\caption", "\\centering\n\\caption", 1)
    if table.caption:
        return "".join(f"% {line}\n" for line in (table.title, *table.lines, *table.notes)) + body.rstrip()
    notes = "".join(f"\\par\\footnotesize {note.translate(LATEX)}\n" for note in table.notes)
    return body.replace("\\end{table}", f"{notes}\\end{{table}}").rstrip()


def table_text(table: Table) -> TextTable:
    """Format a table of runs in percent, with one decimal."""
    has_oracle = any(name == ORACLE for _, name in table.rows)
    shown = table.cells.index.get_level_values("column")
    by_class = [title for title in (*COLUMNS, *TAIL, *TWO_CLASSES, *LABEL_COLUMNS) if title in shown]
    columns = [*table.columns, AVERAGE, *by_class, *([] if table.protocol.columns else [SPREAD])]
    # The title of the average states the number of domains.
    titles = [table.average_title if column == AVERAGE else column for column in columns]
    trained = table.cells[table.cells.index.get_level_values("round") != UNTRAINED]
    rows = []
    for row in table.rows:
        usual_count = int(trained["n"].max()) if row[1] != UNTRAINED else None
        accuracies = [format_cell(table.cell(row, column), usual_count=usual_count) for column in columns]
        gap = [format_gap(table.cell(row, GAP))] if has_oracle else []
        rows.append([*row, *accuracies, *gap, *_costs(table.runs[row[0]], is_trained=row[1] != UNTRAINED)])
    metrics = dict.fromkeys(SELECTION_METRICS[run.select] for run in table.records if run.rounds) or ["accuracy"]
    legends = [LEGEND.format(selection=" or ".join(metrics))]
    if "balanced" in by_class:
        legends.append(BALANCE_LEGEND)
    if "head" in by_class:
        legends.append(TAIL_LEGEND)
    if "AUROC" in by_class:
        measured = [scores for run in table.records for row in run.metrics.values() for scores in row.values()]
        positive = {repr(scores["positive_class"]) for scores in measured if "positive_class" in scores}
        legends.append(f"positive class: {' or '.join(sorted(positive))}; {TWO_CLASSES_LEGEND}")
    if table.records[0].has_several_labels:
        legends.append(LABEL_SCORES_LEGEND)
    if has_oracle:
        legends.append(ORACLE_LEGEND)
    if table.cells["low"].notna().any():
        legends.append(INTERVAL_LEGEND.format(resampled=table.resampled))
    measure = _describe_measure(table)
    about = "; ".join(f"{name}: {value}" for name, value in table.about.items() if name not in TITLE_KEYS)
    return TextTable(
        title=", ".join(table.about[name] for name in TITLE_KEYS),
        lines=[about, measure, *map(table.records[0].name_accuracy, legends)],
        frame=pd.DataFrame(rows, columns=["method", "round", *titles, *([GAP] if has_oracle else []), *COST_COLUMNS]),
        text_columns=2,
        notes=[*_notes(table), *_warnings(table)],
        caption=f"{table.about['data']}, CLIP {table.records[0].clip}: {measure.partition('; average')[0]}.",
        marks=_marks(table, dict(zip(columns, titles, strict=True))),
    )


def _marks(table: Table, titles: Mapping[str, str]) -> dict[tuple[int, str], str]:
    """Choose LaTeX commands for the best and second-best rounded number of each column, by row and title."""
    # An oracle is not a valid result, and a wide spread is not an advantage.
    means = table.cells["mean"].round(1).drop(ORACLE, level="round", errors="ignore")
    ranks: Any = means.groupby(level="column").rank(method="dense", ascending=False)
    marks = {}
    for (method, name, column), rank in ranks.items():
        if rank in RANKS and column in titles and not column.startswith(SPREAD):
            marks[table.rows.index((method, name)), titles[column]] = RANKS[rank]
    return marks


def _warnings(table: Table) -> list[str]:
    rising: list[str] = []
    short: list[str] = []
    for method, runs in table.runs.items():
        if not any(row[0] == method and row[1] != UNTRAINED for row in table.rows):
            continue
        rounds = config_rounds(config_name(runs[0]))
        # Closed-form classifiers need a single round.
        if rounds != 1 and all(f"{BEST_ROW} ({run.rounds})" in " ".join(run.accuracy) for run in runs):
            rising.append(method)
        if runs[0].rounds < rounds:
            short.append(f"{method} {runs[0].rounds} of {rounds}")
    warnings = {
        "source validation was best in the last round, so more rounds may help": rising,
        "fewer rounds than in the config": short,
    }
    return [*_balance_notes(table), *(f"{kind}: {', '.join(parts)}" for kind, parts in warnings.items() if parts)]


def _balance_notes(table: Table) -> list[str]:
    notes: list[str] = []
    unavailable: list[str] = []
    role = table.protocol.scored_role
    for method, name in [row for row in table.rows if row[1] != ORACLE]:
        title = row_title((method, name))
        balances = [run.balance[title] for run in table.runs[method] if title in run.balance]
        label = method if name == UNTRAINED else f"{method}, {name}"
        findings = [describe_balance({role: each[role]}, label) for each in balances if role in each]
        lines = [line for finding in findings for line in finding]
        if lines:
            part = "" if len(lines) == len(balances) else f" ({len(lines)} of {len(balances)} runs)"
            notes.append(lines[0] + part)
        if len(findings) < len(balances) and not table.records[0].has_several_labels:
            unavailable.append(label)
    return [*notes, *([f"{UNAVAILABLE}: {'; '.join(unavailable)}"] if unavailable else [])]


def _notes(table: Table) -> list[str]:
    shown = dict.fromkeys(method for method, _ in table.rows)
    by_version: dict[str, list[str]] = {}
    for method in shown:
        used = {name: {run.versions.get(name, "not recorded") for run in table.runs[method]} for name in PACKAGES}
        version = ", ".join(f"{name} {' and '.join(sorted(versions))}" for name, versions in used.items())
        by_version.setdefault(version, []).append(method)
    versions = [f"{version}: {', '.join(methods)}" for version, methods in by_version.items()]
    # Some protocols have classes that class means cannot classify.
    missing = [method for method in table.runs if method not in (*shown, CLASS_MEANS_ROW)]
    unmeasured = [f"{method}: not evaluated in any of these rounds" for method in missing]
    return [*(versions if len(versions) > 1 else []), *unmeasured]


def format_cell(cell: Cell | None, decimals: int = 1, usual_count: int | None = None) -> str:
    """Format mean, deviation, an unusual number of seeds, and the interval if there is one.

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
    """Format a signed difference in points, with its deviation over seeds."""
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
    start = f"{table.records[0].name_accuracy('accuracy in %')} on {table.protocol.images}; {seeds}"
    if table.protocol.columns:
        return f"{start}; {table.average_title}: {table.records[0].name_accuracy(table.protocol.score)}"
    over = "data sets" if table.role == "transfer" else "domains"
    return (
        f"{start}; average and {SPREAD} "
        f"(population standard deviation) over {over}, from seeds that have all of these columns"
    )


def describe_result(table: Table) -> str:
    """Describe the method with the highest average after the last round, and its lead over other methods.

    The text marks a lead within the sum of the two deviations over seeds, and results of a single seed.
    """
    cells = {row: cell for row in table.sort_rows().compared_rows if (cell := table.cell(row)) is not None}
    if not cells:
        return "No method was evaluated on all domains, so none can be called the best."
    best, *others = cells
    trained = [row for row in cells if row[1] != UNTRAINED]
    by_class = [f"{title} {format_cell(cell)}" for title in COLUMNS if (cell := table.cell(best, title))]
    score = _score(cells[best], table, is_trained=best[1] != UNTRAINED)
    score += f" ({', '.join(by_class)})" if by_class else ""
    if not trained:
        return f"{best[0]} has {score}; no trained method was evaluated on all domains."
    remark = "" if cells[trained[0]].n > 1 else "; a single seed does not show how much of this is chance"
    if best[1] == UNTRAINED:
        points = cells[best].mean - cells[trained[0]].mean
        return (
            f"No trained method is above {best[0]}, which has {score}. The best trained method, {trained[0][0]}, is "
            f"{points:.1f} points behind{_doubt(cells[best], cells[trained[0]])}{remark}."
        )
    # The next method, and the baselines.
    untrained = [row for row in others[1:] if row[0] in BASELINES.values()]
    leads = [_lead(cells[best], row[0], cells[row]) for row in (*others[:1], *untrained)]
    text = " and ".join([*([", ".join(leads[:-1])] if leads[1:] else []), *leads[-1:]])
    compared = f": {text}" if leads else ", and no other method was evaluated on all domains"
    return f"{best[0]} has the highest result, {score}{compared}{remark}."


def _score(cell: Cell, table: Table, is_trained: bool) -> str:
    part = "" if table.is_whole else f" ({len(table.columns)} of {table.num_columns})"
    score = f"{format_cell(cell)} % {table.records[0].name_accuracy(table.protocol.score)}{part}"
    seeds = "one seed" if cell.n == 1 else f"{cell.n} seeds"
    return f"{score} over {seeds}" if is_trained else score


def _lead(best: Cell, name: str, other: Cell) -> str:
    points = f"{best.mean - other.mean:.1f}"
    return f"equal to {name}" if points == "0.0" else f"{points} points above {name}{_doubt(best, other)}"


def _doubt(best: Cell, other: Cell) -> str:
    deviations = [cell.std for cell in (best, other) if cell.n > 1]
    if deviations and best.mean - other.mean <= sum(deviations):
        return " (within the deviations over seeds, so not a clear difference)"
    return ""
