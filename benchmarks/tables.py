"""Tables in Markdown, and their number format."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """One table of a benchmark.

    Attributes:
        title: Subject of the table.
        header: Column titles.
        rows: Rows of cells, each with a text followed by numbers.
        notes: Notes for readers.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: str = ""

    def markdown(self) -> str:
        """Format title, notes and table."""
        lines = [f"## {self.title}", ""]
        if self.notes:
            lines += [self.notes, ""]
        lines.append(f"| {' | '.join(self.header)} |")
        lines.append(f"|---|{'---:|' * (len(self.header) - 1)}")
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join([*lines, ""])


def seconds_with_spread(seconds: Sequence[float]) -> list[str]:
    """Format the median, the range, and the number of repeats.

    >>> seconds_with_spread([0.25, 0.1, 0.2])
    ['0.2', '0.1 to 0.25', '3']
    """
    spread = f"{number(min(seconds))} to {number(max(seconds))}"
    return [number(statistics.median(seconds)), spread, str(len(seconds))]


def number(value: float) -> str:
    """Format a number with three digits, or with all digits before its point.

    >>> number(0.012345), number(12.345), number(1234.5)
    ('0.0123', '12.3', '1234')
    """
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(share: float) -> str:
    """Format a share as a percentage.

    >>> percent(0.123), percent(0.00123)
    ('12 %', '0.12 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"
