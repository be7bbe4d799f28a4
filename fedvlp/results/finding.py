"""What a table says, in one sentence."""

from __future__ import annotations

from fedvlp.results.compare import Table, TableRow
from fedvlp.results.ranking import contestants
from fedvlp.results.rendering import format_cell
from fedvlp.results.statistics import AVERAGE, Cell


def finding(table: Table) -> str:
    """Returns which method has the highest average after the last round, and how far it is from the others.

    A lead of no more than the two deviations over seeds together is called so, and so is what rests on one seed.
    """
    rows = contestants(table)
    trained = [row for row in rows if row.is_trained]
    if not rows:
        return "No method was measured on every domain, so none is called the best."
    if not trained:
        return f"{rows[0].label} has {_score(rows[0], table)}; no method that trains was measured on every domain."
    if not rows[0].is_trained:
        behind = f"{_points(rows[0], trained[0])} points behind" + _doubt(rows[0], trained[0])
        first = f"No trained method is above {rows[0].label}, which has {_score(rows[0], table)}"
        return f"{first}: the best of them, {trained[0].label}, is {behind}{_of_one_seed(trained[0])}."
    best = rows[0]
    leads = [f"{_lead(best, row)}" for row in _others(rows)]
    compared = f": {' and '.join(leads)}" if leads else ", and no other method was measured on every domain"
    return f"{best.label} has the highest result, {_score(best, table)}{compared}{_of_one_seed(best)}."


def _others(rows: list[TableRow]) -> list[TableRow]:
    """Returns the rows that the first one is compared with: the next one, and zero-shot CLIP."""
    zero_shot = [row for row in rows[2:] if not row.is_trained]
    return [*rows[1:2], *zero_shot[:1]]


def _score(row: TableRow, table: Table) -> str:
    cell = row.cells[AVERAGE]
    part = "" if table.is_whole else f" ({len(table.domains)} of {table.num_domains})"
    score = f"{format_cell(cell)} % {table.measure.score}{part}"
    return f"{score} over {_count_seeds(cell)}" if row.is_trained else score


def _lead(best: TableRow, other: TableRow) -> str:
    if _points(best, other) == "0.0":
        return f"level with {other.label}"
    return f"{_points(best, other)} points above {other.label}{_doubt(best, other)}"


def _points(best: TableRow, other: TableRow) -> str:
    return f"{best.cells[AVERAGE].mean - other.cells[AVERAGE].mean:.1f}"


def _doubt(best: TableRow, other: TableRow) -> str:
    """Returns a remark where a lead may be chance."""
    cells = (best.cells[AVERAGE], other.cells[AVERAGE])
    deviations = [cell.deviation for cell in cells if cell.deviation is not None]
    if deviations and cells[0].mean - cells[1].mean <= sum(deviations):
        return " (within the deviations over seeds, so not shown to differ)"
    return ""


def _of_one_seed(row: TableRow) -> str:
    return "" if row.cells[AVERAGE].count > 1 else "; one seed does not tell how much of this is chance"


def _count_seeds(cell: Cell) -> str:
    return "one seed" if cell.count == 1 else f"{cell.count} seeds"
