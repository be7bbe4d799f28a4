"""What a reader of a paper's table must know, and the marks that lead from its cells there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property

import yaml

from fedvlp.results.papers import FOLDER, PrintedTable
from fedvlp.results.rendered_table import with_marks


@dataclass(frozen=True)
class Footnote:
    """A note on cells of a paper's table.

    Attributes:
        text: the note.
        methods: whose rows; all if empty.
        domains: which columns; the rows as a whole if empty.
    """

    text: str
    methods: tuple[str, ...]
    domains: tuple[str, ...]

    @property
    def is_of_whole_table(self) -> bool:
        """Whether the note is of no row and no column in particular."""
        return not self.methods and not self.domains

    def is_of(self, method: str, domain: str) -> bool:
        """Whether the note is of a cell."""
        is_of_row = not self.methods or method in self.methods
        is_of_column = not self.domains or domain in self.domains
        return is_of_row and is_of_column

    def is_of_any(self, method: str, domains: Iterable[str]) -> bool:
        """Whether the note is of a cell of a row that has these columns."""
        return any(self.is_of(method, domain) for domain in domains)


@cache
def all_footnotes() -> tuple[tuple[str, Footnote], ...]:
    """Returns every note with the ``<paper> <table>`` that it is of."""
    notes = yaml.safe_load((FOLDER / "footnotes.yaml").read_text(encoding="utf-8"))
    found = []
    for entry in notes:
        note = Footnote(entry["text"], tuple(entry.get("methods", [])), tuple(entry.get("domains", [])))
        found += [(table, note) for table in entry["in"]]
    return tuple(found)


@dataclass(frozen=True)
class Notes:
    """The notes of one printed table; those of some of its rows or columns are numbered, from 1.

    Attributes:
        printed: the table.
    """

    printed: PrintedTable

    @cached_property
    def found(self) -> list[Footnote]:
        """The notes that are of any cell."""
        table = f"{self.printed.paper} {self.printed.table}"
        return [note for name, note in all_footnotes() if name == table and self._is_used(note)]

    @property
    def lines(self) -> list[str]:
        """What stands below the table: the numbered notes, then those of the whole table."""
        numbered = [f"^{number} {note.text}" for number, note in self._numbered]
        return numbered + [note.text for note in self.found if note.is_of_whole_table]

    def method(self, name: str) -> str:
        """Returns a method's name with the marks of notes on its row."""
        return with_marks(name, _marks(n for n, note in self._numbered if name in note.methods and not note.domains))

    def domain(self, name: str) -> str:
        """Returns a domain's name with the marks of notes on its column."""
        return with_marks(name, _marks(n for n, note in self._numbered if name in note.domains and not note.methods))

    def cell(self, method: str, domain: str, number: str) -> str:
        """Returns a number with the marks of notes on it alone."""
        marks = _marks(n for n, note in self._numbered if method in note.methods and domain in note.domains)
        return with_marks(number, marks)

    def texts(self, method: str, domain: str) -> str:
        """Returns all notes of a cell, as one text."""
        return " ".join(note.text for note in self.found if note.is_of(method, domain))

    @property
    def _numbered(self) -> list[tuple[int, Footnote]]:
        partial = [note for note in self.found if not note.is_of_whole_table]
        return list(enumerate(partial, start=1))

    def _is_used(self, note: Footnote) -> bool:
        return any(note.is_of_any(row.method, row.numbers) for row in self.printed.rows)


def _marks(numbers: Iterable[int]) -> list[str]:
    return [str(number) for number in numbers]
