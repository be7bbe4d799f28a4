"""A table as text cells, and the marks of footnotes at the end of cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MARKS = re.compile(r"\^([0-9a-z]+(?:,[0-9a-z]+)*)$")
NOTE_MARK = re.compile(r"\^(\w+) ")


@dataclass(frozen=True)
class RenderedTable:
    """A table whose numbers are text already; a cell that ends in ``^1`` or ``^1,2`` carries the marks of notes.

    Attributes:
        title: what the table is of.
        lines: what stands between title and table.
        head: titles of the columns.
        rows: the cells.
        text_columns: number of columns that hold words; they come first, and the others hold numbers.
        notes: what stands below the table; one that begins with ``^1 `` is the note of that mark.
    """

    title: str
    lines: tuple[str, ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int
    notes: tuple[str, ...] = ()


def with_marks(text: str, marks: Sequence[str]) -> str:
    """Returns a cell with the marks of notes behind it.

    >>> with_marks("81.29", ["1", "b"]), with_marks("81.29", [])
    ('81.29^1,b', '81.29')
    """
    return f"{text}^{','.join(marks)}" if marks else text


def split_marks(cell: str) -> tuple[str, str]:
    """Returns a cell without its marks, and the marks, empty if there are none.

    >>> split_marks("81.29^1,b"), split_marks("81.29")
    (('81.29', '1,b'), ('81.29', ''))
    """
    found = MARKS.search(cell)
    if found is None:
        return cell, ""
    return cell[: found.start()], found.group(1)


def split_note(note: str) -> tuple[str, str]:
    """Returns the mark with which a note begins, empty if there is none, and the rest of the note.

    >>> split_note("^1 said once"), split_note("for all of it")
    (('1', 'said once'), ('', 'for all of it'))
    """
    found = NOTE_MARK.match(note)
    if found is None:
        return "", note
    return found.group(1), note[found.end() :]
