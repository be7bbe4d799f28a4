"""What a reader of a paper's table must know, and the marks that lead from its cells there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import yaml

from fedvlp.results.formats import marked
from fedvlp.results.papers import FOLDER, PrintedTable


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

    def is_of(self, method: str, domain: str) -> bool:
        """Whether the note is of a cell."""
        return (method in self.methods or not self.methods) and (domain in self.domains or not self.domains)


@cache
def all_footnotes() -> tuple[tuple[str, Footnote], ...]:
    """Returns every note with the ``<paper> <table>`` that it is of."""
    notes = yaml.safe_load((FOLDER / "footnotes.yaml").read_text(encoding="utf-8"))
    return tuple(
        (place, Footnote(note["text"], tuple(note.get("methods", [])), tuple(note.get("domains", []))))
        for note in notes
        for place in note["in"]
    )


@dataclass(frozen=True)
class Notes:
    """The notes of one printed table.

    Attributes:
        printed: the table.
    """

    printed: PrintedTable

    @cached_property
    def found(self) -> list[Footnote]:
        """The notes that are of any cell."""
        cells = [(row.method, domain) for row in self.printed.rows for domain in row.numbers]
        place = f"{self.printed.paper} {self.printed.table}"
        notes = [note for where, note in all_footnotes() if where == place]
        return [note for note in notes if any(note.is_of(*cell) for cell in cells)]

    @property
    def lines(self) -> list[str]:
        """What stands below the table: the marked notes, then those of the whole table."""
        return [f"^{i} {note.text}" for i, note in self._marked] + [note.text for note in self.found if _is_whole(note)]

    def method(self, name: str) -> str:
        """Returns a method's name with the marks of notes on its row."""
        return marked(name, [str(i) for i, note in self._marked if name in note.methods and not note.domains])

    def domain(self, name: str) -> str:
        """Returns a domain's name with the marks of notes on its column."""
        return marked(name, [str(i) for i, note in self._marked if name in note.domains and not note.methods])

    def cell(self, method: str, domain: str, number: str) -> str:
        """Returns a number with the marks of notes on it alone."""
        return marked(number, [str(i) for i, n in self._marked if method in n.methods and domain in n.domains])

    def texts(self, method: str, domain: str) -> str:
        """Returns all that is to be said of a cell."""
        return " ".join(note.text for note in self.found if note.is_of(method, domain))

    @property
    def _marked(self) -> list[tuple[int, Footnote]]:
        """The notes that have a number."""
        return list(enumerate((note for note in self.found if not _is_whole(note)), 1))


def _is_whole(note: Footnote) -> bool:
    """Whether a note is of the whole table."""
    return not note.methods and not note.domains
