"""Ranking of the rows of a table, and its result in one sentence."""

from dataclasses import replace

from fedvlp.core.balance import COLUMNS
from fedvlp.core.roles import BASELINES
from fedvlp.tools.compare.printing import format_cell
from fedvlp.tools.compare.tables import AVERAGE, CELL, LAST, UNTRAINED, Cell, Row, Table


def compared_rows(table: Table) -> list[Row]:
    """Select the last rounds and baselines with an average, i.e. of methods that were evaluated on all domains."""
    return [row for row in table.rows if row[1] in (LAST, UNTRAINED) and table.cell(row, AVERAGE) is not None]


def sort_rows(table: Table) -> Table:
    """Sort rows by the average of their method, highest first, with missing averages at the end."""
    cells = table.cells.reset_index()
    # A method is ranked by its first row, which is the last round if that is shown.
    first_rows = cells.drop_duplicates("method")[["method", "round"]]
    averages = first_rows.merge(cells[cells["column"] == AVERAGE], how="left").set_index("method")["mean"]
    methods = averages.sort_values(ascending=False, kind="stable", na_position="last").index
    return replace(table, cells=cells.iloc[cells["method"].map(methods.get_loc).argsort(kind="stable")].set_index(CELL))


def describe_result(table: Table) -> str:
    """Describe the method with the highest average after the last round, and its lead over other methods.

    The text marks a lead within the sum of the two deviations over seeds, and results of a single seed.
    """
    cells = {row: cell for row in compared_rows(sort_rows(table)) if (cell := table.cell(row, AVERAGE)) is not None}
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
