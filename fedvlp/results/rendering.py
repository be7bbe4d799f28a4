"""A table of runs as text cells, for readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedvlp.results.compare import Table, TableRow, repeat_warnings
from fedvlp.results.oracle import NOT_ALLOWED
from fedvlp.results.rendered_table import RenderedTable, with_marks
from fedvlp.results.statistics import AVERAGE, SPREAD, Cell, Interval

ROUNDS = {"last": "last", "best": "best", "both": "last, best", "oracle": NOT_ALLOWED, "": "-"}
TITLE_KEYS = ("data", "protocol", "backbone")
_COLUMNS = {"transfer": "data sets"}
COST_COLUMNS = ("up", "down", "bytes", "seconds")
LEGEND = (
    "last: last round; best: round with the best mean accuracy on source validation. Nothing is chosen on the images "
    "that are compared. up, down: parameters of one client and round; bytes: both ways; seconds: all rounds of a run"
)
GAP = "gap to last"
ORACLE_LEGEND = (
    f"{NOT_ALLOWED}: each run's round with the highest accuracy on the very images that are compared, of those that "
    f"were evaluated. It is shown for its {GAP}, the points by which a table that chooses so is higher; it is no result"
)
INTERVAL_LEGEND = (
    "[low, high]: 95 % interval of a bootstrap over images, which are drawn with what all seeds took them for; it says "
    "how far the mean rests on these images, as the deviation says how far it rests on the seeds"
)


def render_table(table: Table) -> RenderedTable:
    """Returns a table of runs for readers, in percent with one decimal."""
    marks = _version_marks(table)
    has_oracle = any(row.selection == "oracle" for row in table.rows)
    rows = []
    for row in table.rows:
        label = with_marks(row.label, marks.get(row.versions, ""))
        gap = [format_gap(row.gap)] if has_oracle else []
        rows.append((label, ROUNDS[row.selection], *_accuracy_cells(table, row), *gap, *_cost_cells(row)))
    gap_title = [GAP] if has_oracle else []
    version_notes = [f"^{mark} {versions}" for versions, mark in marks.items()]
    return RenderedTable(
        title=title(table.group.about),
        lines=(
            describe_group(table.group.about),
            _describe_measure(table),
            LEGEND,
            *([ORACLE_LEGEND] if has_oracle else []),
            *([INTERVAL_LEGEND] if any(row.intervals for row in table.rows) else []),
        ),
        head=("method", "round", *table.domains, table.average_title, *_spread(table), *gap_title, *COST_COLUMNS),
        rows=tuple(rows),
        text_columns=2,
        notes=(*version_notes, *repeat_warnings(table)),
    )


def title(about: Mapping[str, str]) -> str:
    """Returns the title of a table of runs that have this in common."""
    return ", ".join(about[name] for name in TITLE_KEYS)


def describe_group(about: Mapping[str, str]) -> str:
    """Returns what runs have in common and the title does not say."""
    return "; ".join(f"{name}: {value}" for name, value in about.items() if name not in TITLE_KEYS)


def format_cell(cell: Cell | None, decimals: int = 1, usual_count: int | None = None) -> str:
    """Returns mean and deviation, and the number of seeds where it is not the usual one.

    >>> cell = Cell(62.0, 2.0, 3)
    >>> format_cell(cell, usual_count=3), format_cell(cell, usual_count=2), format_cell(None)
    ('62.0 ± 2.0', '62.0 ± 2.0 (n=3)', '-')
    """
    if cell is None:
        return "-"
    text = f"{cell.mean:.{decimals}f}"
    if cell.deviation is not None:
        text += f" ± {cell.deviation:.{decimals}f}"
    if usual_count not in (None, cell.count):
        text += f" (n={cell.count})"
    return text


def format_interval(interval: Interval) -> str:
    """Returns both ends.

    >>> format_interval((59.96, 64.2))
    '[60.0, 64.2]'
    """
    low, high = interval
    return f"[{low:.1f}, {high:.1f}]"


def format_gap(gap: Cell | None) -> str:
    """Returns a difference in points with its sign, and its deviation over seeds.

    >>> format_gap(Cell(1.25, 0.5, 3)), format_gap(Cell(0.0, None, 1)), format_gap(None)
    ('+1.2 ± 0.5', '+0.0', '-')
    """
    return "-" if gap is None else f"{'+' if gap.mean >= 0 else ''}{format_cell(gap)}"


def _accuracy_cells(table: Table, row: TableRow) -> list[str]:
    usual_count = _most_seeds(table) if row.is_trained else None
    found = []
    for name in (*table.domains, AVERAGE, *_spread(table)):
        interval = [format_interval(row.intervals[name])] if name in row.intervals else []
        found.append(" ".join([format_cell(row.cells.get(name), usual_count=usual_count), *interval]))
    return found


def _spread(table: Table) -> tuple[str, ...]:
    """Returns the title of the spread over columns, where the columns are alike."""
    return () if table.measure.columns else (SPREAD,)


def _most_seeds(table: Table) -> int:
    """Returns the number of seeds of the cell that has most, of what trains."""
    counts = [1]  # where nothing was measured
    for row in table.rows:
        if row.is_trained:
            counts += [cell.count for cell in row.cells.values()]
    return max(counts)


def _cost_cells(row: TableRow) -> list[str]:
    seconds = "-" if row.seconds is None else f"{row.seconds:.0f}"
    costs = row.costs
    if not costs:
        return ["-", "-", "-", seconds]
    up = format_range([costs["upload_parameters"]])
    down = format_range([costs["download_parameters"]])
    both = format_range([costs["upload_bytes"], costs["download_bytes"]])
    return [up, down, both, seconds]


def format_range(ranges: Sequence[tuple[int, int]]) -> str:
    """Returns the sum of some counts, or its least and its most.

    >>> format_range([(1000, 1000)]), format_range([(1000, 1000), (1, 5)])
    ('1,000', '1,001-1,005')
    """
    least = sum(start for start, _ in ranges)
    most = sum(end for _, end in ranges)
    return f"{least:,}" if least == most else f"{least:,}-{most:,}"


def _describe_measure(table: Table) -> str:
    seeds = f"accuracy in % on {table.measure.images}; {_describe_seeds(table.seeds)}"
    if table.measure.columns:
        return f"{seeds}; {table.average_title}: {table.measure.score}"
    over = _COLUMNS.get(table.role, "domains")
    return (
        f"{seeds}; average and {SPREAD} "
        f"(population standard deviation) over {over} for each seed that has all of these columns"
    )


def _describe_seeds(seeds: Sequence[int]) -> str:
    if not seeds:
        return "nothing was trained"
    numbers = ", ".join(map(str, seeds))
    return f"mean ± sample standard deviation (n - 1) over seeds {numbers}" if len(seeds) > 1 else f"seed {numbers}"


def _version_marks(table: Table) -> dict[str, str]:
    """Returns a letter for each set of versions, if there are several."""
    versions = list(dict.fromkeys(row.versions for row in table.rows))
    if len(versions) < 2:
        return {}
    return {name: chr(ord("a") + index) for index, name in enumerate(versions)}
