"""How tables of runs are shown: as sheets for readers, and cell by cell for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvlp.results.compare import Line, Table, repeated
from fedvlp.results.formats import Sheet, marked
from fedvlp.results.statistics import AVERAGE, SPREAD, Cell

ROLES = {
    "held_out": "held-out domains",
    "test": "each domain's test split",
    "validation": "each domain's source validation split, as there is no test split; it also chose the best round",
}
TITLE = ("data", "protocol", "backbone")
COSTS = ("up", "down", "bytes", "seconds")
ROUNDS = (
    "last: last round; best: round with the best mean accuracy on source validation. Nothing is chosen on the images "
    "that are compared. up, down: parameters of one client and round; bytes: both ways; seconds: all rounds of a run"
)
TIDY = (
    *("table", "data", "images", "classes", "protocol", "split", "clients", "shots", "backbone"),
    *("source", "method", "round", "column", "mean", "std", "n", "note"),
)


def sheet(table: Table) -> Sheet:
    """Returns a table of runs for readers, in percent with one decimal."""
    marks = _version_marks(table)
    rows = [(marked(line.label, marks.get(line.versions, "")), *_cells(table, line)) for line in table.lines]
    return Sheet(
        title(table.group.about),
        (described(table.group.about), _measure(table), ROUNDS),
        ("method", "round", *table.domains, table.average_title, SPREAD, *COSTS),
        tuple(rows),
        2,
        (*(f"^{mark} {versions}" for versions, mark in marks.items()), *repeated(table)),
    )


def title(about: Mapping[str, str]) -> str:
    """Returns what heads a table."""
    return ", ".join(about[name] for name in TITLE)


def described(about: Mapping[str, str]) -> str:
    """Returns what the title does not say."""
    return "; ".join(
        f"{name}: {value}" for name, value in about.items() if name not in ("data", "protocol", "backbone")
    )


def number(cell: Cell | None, decimals: int = 1, usual: int | None = None) -> str:
    """Returns mean and deviation, and the number of seeds where it is not the usual one.

    >>> number(Cell(62.0, 2.0, 3), usual=3), number(Cell(62.0, 2.0, 2), usual=3), number(None)
    ('62.0 ± 2.0', '62.0 ± 2.0 (n=2)', '-')
    """
    if cell is None:
        return "-"
    deviation = "" if cell.deviation is None else f" ± {cell.deviation:.{decimals}f}"
    return f"{cell.mean:.{decimals}f}{deviation}" + (f" (n={cell.count})" if usual not in (None, cell.count) else "")


def tidy(table: Table, which: int) -> list[dict[str, Any]]:
    """Returns one row for each cell, with the keys ``TIDY``; deviations are sample standard deviations over seeds."""
    about = {name: value for name, value in table.group.about.items() if name in TIDY}
    rows: list[dict[str, Any]] = []
    for line in table.lines:
        own: dict[str, Any] = {"table": which, **about, "source": "ours", "method": line.label, "round": line.selection}
        own["note"] = line.versions
        for name, cell in line.cells.items():
            column = (
                name if name != AVERAGE or table.is_whole else f"{AVERAGE} of {len(table.domains)} of {table.known}"
            )
            rows.append(own | {"column": column, "mean": cell.mean, "std": cell.deviation, "n": cell.count})
        rows += [own | {"column": name, "mean": most, "n": len(line.records)} for name, (_, most) in line.costs.items()]
        if line.seconds is not None:
            rows.append(own | {"column": "seconds", "mean": line.seconds, "n": len(line.records)})
    return rows


def _cells(table: Table, line: Line) -> list[str]:
    """Returns a row without its label."""
    counts = [cell.count for other in table.lines if other.selection for cell in other.cells.values()]
    usual = max(counts, default=1) if line.selection else None
    shown = [number(line.cells.get(name), usual=usual) for name in (*table.domains, AVERAGE, SPREAD)]
    costs = line.costs
    up, down = (_range([costs[f"{way}_parameters"]]) if costs else "-" for way in ("upload", "download"))
    both = _range([costs["upload_bytes"], costs["download_bytes"]]) if costs else "-"
    return [line.selection or "-", *shown, up, down, both, "-" if line.seconds is None else f"{line.seconds:.0f}"]


def _range(parts: Sequence[tuple[int, int]]) -> str:
    """Returns the sum of some counts, or its least and its most.

    >>> _range([(1000, 1000)]), _range([(1000, 1000), (1, 5)])
    ('1,000', '1,001-1,005')
    """
    least, most = (sum(part[end] for part in parts) for end in (0, 1))
    return f"{least:,}" if least == most else f"{least:,}-{most:,}"


def _measure(table: Table) -> str:
    """Returns what the numbers are."""
    seeds = ", ".join(map(str, table.seeds))
    over = f"mean ± sample standard deviation (n - 1) over seeds {seeds}" if len(table.seeds) > 1 else f"seed {seeds}"
    return (
        f"accuracy in % on {ROLES[table.role]}; {over if seeds else 'nothing was trained'}; average and {SPREAD} "
        f"(population standard deviation) over domains for each seed that has all of these columns"
    )


def _version_marks(table: Table) -> dict[str, str]:
    """Returns a letter for each set of versions, if there are several."""
    found = list(dict.fromkeys(line.versions for line in table.lines))
    return {versions: chr(ord("a") + i) for i, versions in enumerate(found)} if len(found) > 1 else {}
