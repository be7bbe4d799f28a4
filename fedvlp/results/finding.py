"""What a table shows, in one sentence."""

from __future__ import annotations

from fedvlp.results.printing import format_cell
from fedvlp.results.tables import AVERAGE, UNTRAINED, Cell, Row, Table, ranking


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
