"""What is measured beside accuracy, for each method of a table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from fedvlp.core.roles import OUT_OF_DISTRIBUTION, role_title
from fedvlp.results.compare import Table, TableRow
from fedvlp.results.confusion import LAST_ROW, ZERO_SHOT_ROW
from fedvlp.results.intervals import intervals
from fedvlp.results.record import Record
from fedvlp.results.rendered_table import RenderedTable
from fedvlp.results.rendering import format_cell, format_interval
from fedvlp.results.statistics import AVERAGE, over_seeds
from fedvlp.tools.report.html import Html, html_table, joined, tag
from fedvlp.tools.report.series import complete_seeds

Path = tuple[str, ...]
"""Where a number stands among the scores of a role."""

OfSeed = Callable[[Iterable[float]], float]
SCORES: Mapping[str, tuple[Path, OfSeed]] = {
    "balanced accuracy": (("balanced_accuracy",), statistics.fmean),
    "macro F1": (("macro_f1",), statistics.fmean),
    "calibration error": (("calibration_error",), statistics.fmean),
    "worst domain": (("worst_domain", "accuracy"), min),
    "worst client": (("worst_client", "accuracy"), min),
}
"""By title: where the number is, and what a seed's several runs, each with its own held-out domains, make of theirs."""

DETECTION = {"AUROC": "auroc", "FPR at 95 %": "fpr_at_95"}


def beside_accuracy(table: Table) -> Html:
    """Returns a table of the methods' last rounds and of zero-shot CLIP; empty if no run has measured more."""
    columns = {**SCORES, **_detection(table.group.records)}
    role = _role(table)
    rows = []
    for row in table.rows:
        if row.selection in ("last", "both", ""):
            cells = _cells(table, row, role, columns)
            if set(cells) != {"-"}:
                rows.append((row.label, *cells))
    if not rows:
        return Html()
    measured = [place for place, column in enumerate(zip(*rows, strict=True)) if set(column) != {"-"}]
    kept = itemgetter(*measured)  # of the label and one cell or more
    head = kept(("method", "accuracy [95 % over images]", *columns))
    shown = tuple(map(kept, rows))
    note = (
        f"On {role_title(role)} images after the last round, in % or points: means over domains, then mean and "
        "deviation over seeds; of the worst domain and client the lowest of each seed. A lower calibration error and a "
        "lower FPR are better."
    )
    return joined([tag("p", note), html_table(RenderedTable("Beside accuracy", (), head, shown, 1))])


def _role(table: Table) -> str:
    """Returns the role whose scores are shown: what rows are ranked by, or the first column that has scores."""
    measured: set[str] = set()
    for record in table.group.records:
        measured.update(*record.metrics.values())
    names = (table.role, *table.measure.columns.values())
    return next((name for name in names if name in measured), table.role)


def _cells(table: Table, row: TableRow, role: str, columns: Mapping[str, tuple[Path, OfSeed]]) -> list[str]:
    """Returns the accuracy's interval and each score; a dash where a run has not measured it."""
    interval = intervals(table, row).get(AVERAGE)
    cells = ["-" if interval is None else f"{format_cell(row.cells[AVERAGE])} {format_interval(interval)}"]
    seeds = complete_seeds(row.records, list(dict.fromkeys(record.held_out for record in table.group.records)))
    title = LAST_ROW if row.is_trained else ZERO_SHOT_ROW
    if not row.is_trained:
        seeds = seeds[:1]  # zero-shot CLIP is the same for every seed
    for path, of_seed in columns.values():
        found = [_of_seed(records, (title, role, *path), of_seed) for records in seeds]
        known = [value for value in found if value is not None]
        cells.append(format_cell(over_seeds(known)) if known and len(known) == len(found) else "-")
    return cells


def _of_seed(records: Sequence[Record], path: Path, of_seed: OfSeed) -> float | None:
    values = [_number(record.metrics, path) for record in records]
    known = [value for value in values if value is not None]
    return of_seed(known) if len(known) == len(values) else None


def _number(scores: Any, path: Path) -> float | None:
    """Returns what stands at a path; None if that is no number."""
    for name in path:
        scores = scores.get(name) if isinstance(scores, Mapping) else None
    return float(scores) if isinstance(scores, (int, float)) else None


def _detection(records: Sequence[Record]) -> dict[str, tuple[Path, OfSeed]]:
    """Returns the columns of images out of distribution, if all runs have measured the same ones."""
    outside = [record.data.get(OUT_OF_DISTRIBUTION) for record in records]
    first = outside[0]
    if not isinstance(first, Mapping) or any(other != first for other in outside):
        return {}
    name = str(first.get("name"))
    return {
        f"{title}, {name}": ((OUT_OF_DISTRIBUTION, name, score), statistics.fmean) for title, score in DETECTION.items()
    }
