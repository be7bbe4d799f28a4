"""What a method says of its own workings on images of every domain: a table, and a JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedvlp.utils.files import write_json

Value = str | int | float | list[float | None] | list[float] | None


@dataclass(frozen=True)
class Diagnosis:
    """Measurements of how a method works inside, which no accuracy shows.

    Attributes:
        name: what was looked at; the file is called so.
        meaning: from each measurement to what it says, in words.
        rows: from each column to its value, one row a domain, or several.
    """

    name: str
    meaning: Mapping[str, str]
    rows: Sequence[Mapping[str, Value]]

    def table(self) -> str:
        """Returns the rows in columns of equal width, and below them what the columns mean.

        >>> print(Diagnosis("routing", {"kept": "share of tokens"}, [{"domain": "photo", "kept": 0.5}]).table())
        domain   kept
        photo   0.500
        <BLANKLINE>
        kept: share of tokens
        """
        columns = self._columns()
        cells = [columns]
        for row in self.rows:
            cells.append([_cell(row.get(column)) for column in columns])
        widths = [max(map(len, cells_of_column)) for cells_of_column in zip(*cells, strict=True)]
        lines = []
        for first, *others in cells:
            aligned = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
            lines.append("  ".join(aligned).rstrip())
        meanings = [f"{column}: {text}" for column, text in self.meaning.items()]
        return "\n".join([*lines, "", *meanings])

    def _columns(self) -> list[str]:
        """All columns of all rows, in the order in which they first appear."""
        seen: dict[str, None] = {}
        for row in self.rows:
            seen |= dict.fromkeys(row)
        return list(seen)

    def write(self, path: Path) -> Path:
        """Writes all of it as JSON, in one step that can't be seen half done; a folder gets ``<name>.json``."""
        file = path / f"{self.name}.json" if path.is_dir() or not path.suffix else path
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"name": self.name, "meaning": dict(self.meaning), "rows": [dict(row) for row in self.rows]})
        return file


def _cell(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(f"{item:.2f}" if item is not None else "-" for item in value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)
