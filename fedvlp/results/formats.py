"""One sheet, a table with the lines around it, as text, Markdown or LaTeX."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

SheetFormat = Literal["table", "markdown", "latex"]
MARK = re.compile(r"\^([0-9a-z]+(?:,[0-9a-z]+)*)$")
PAGE = 100  # letters of a line of text
LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "|": r"$|$",
    "<": "$<$",
    ">": "$>$",
}


@dataclass(frozen=True)
class Sheet:
    """A table; a cell that ends in ``^1`` or ``^1,2`` carries the marks of notes.

    Attributes:
        title: what the table is of.
        lines: what stands between title and table.
        head: titles of the columns.
        rows: the cells.
        texts: number of columns that hold words; they come first, and the others hold numbers.
        notes: what stands below the table.
    """

    title: str
    lines: tuple[str, ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int
    notes: tuple[str, ...] = ()


def render(sheets: Sequence[Sheet], form: SheetFormat) -> str:
    """Returns sheets one below the other."""
    drawn: Mapping[str, Callable[[Sheet], str]] = {"table": _text, "markdown": _markdown, "latex": _latex}
    return "\n\n\n".join(drawn[form](sheet) for sheet in sheets)


def marked(text: str, marks: Sequence[str]) -> str:
    """Returns a cell with the marks of notes behind it.

    >>> marked("81.29", ["1", "b"]), marked("81.29", [])
    ('81.29^1,b', '81.29')
    """
    return f"{text}^{','.join(marks)}" if marks else text


def _text(sheet: Sheet) -> str:
    """Returns aligned text: words to the left, numbers to the right with their marks behind them."""
    rows = [sheet.head, *sheet.rows]
    parts = [[_split(cell) for cell in row] for row in rows]
    widths = [max(len(row[i][0]) for row in parts) for i in range(len(sheet.head))]
    tails = [max(len(row[i][1]) for row in parts) for i in range(len(sheet.head))]
    lines = [
        "  ".join(_aligned(*cell, widths[i], tails[i], i < sheet.texts) for i, cell in enumerate(row)).rstrip()
        for row in parts
    ]
    rule = "-" * max(map(len, lines))
    above, below = _wrapped(sheet.lines, len(rule)), _wrapped(sheet.notes, len(rule))
    return "\n".join([sheet.title, *above, "", lines[0], rule, *lines[1:], *([""] if below else []), *below])


def _wrapped(lines: Sequence[str], width: int) -> list[str]:
    """Returns lines no longer than the table is wide, or a page."""
    return [textwrap.fill(line, max(width, PAGE), subsequent_indent="   ") for line in lines]


def _split(cell: str) -> tuple[str, str]:
    """Returns a cell without its marks, and the marks."""
    found = MARK.search(cell)
    return (cell[: found.start()], found.group()) if found else (cell, "")


def _aligned(text: str, mark: str, width: int, tail: int, is_word: bool) -> str:
    """Returns a cell as wide as its column."""
    return (text + mark).ljust(width + tail) if is_word else text.rjust(width) + mark.ljust(tail)


def _markdown(sheet: Sheet) -> str:
    """Returns a Markdown table under its title."""
    rule = ["---"] * sheet.texts + ["---:"] * (len(sheet.head) - sheet.texts)
    rows = [[_raised(cell) for cell in row] for row in (sheet.head, *sheet.rows)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))
    notes = "\n".join(f"* {_raised_first(note)}" for note in sheet.notes)
    return "\n\n".join(part for part in (f"**{sheet.title}**", "  \n".join(sheet.lines), table, notes) if part)


def _raised(cell: str) -> str:
    """Returns a cell for Markdown, its marks raised."""
    text, mark = _split(cell.replace("|", "\\|"))
    return f"{text}<sup>{mark[1:]}</sup>" if mark else text


def _raised_first(note: str) -> str:
    """Returns a note that begins with its mark, raised."""
    return re.sub(r"^\^(\w+) ", r"<sup>\1</sup> ", note)


def _latex(sheet: Sheet) -> str:
    r"""Returns a table for the package booktabs."""
    columns = "l" * sheet.texts + "r" * (len(sheet.head) - sheet.texts)
    rows = [" & ".join(_escaped_cell(cell) for cell in row) + r" \\" for row in (sheet.head, *sheet.rows)]
    caption = ". ".join(escaped(line) for line in (sheet.title, *sheet.lines))
    notes = [rf"\par\footnotesize {_escaped_note(note)}" for note in sheet.notes]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}.}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            rows[0],
            r"\midrule",
            *rows[1:],
            r"\bottomrule",
            r"\end{tabular}",
            *notes,
            r"\end{table}",
        ]
    )


def escaped(text: str) -> str:
    r"""Returns text as LaTeX prints it.

    >>> escaped("art_painting 50 % ± 1")
    'art\\_painting 50 \\% $\\pm$ 1'
    """
    return "".join(LATEX.get(sign, sign) for sign in text)


def _escaped_cell(cell: str) -> str:
    """Returns a cell for LaTeX: marks raised, a minus sign before negative numbers."""
    text, mark = _split(cell)
    text = f"$-${escaped(text[1:])}" if re.match(r"-\d", text) else escaped(text)
    return f"{text}\\textsuperscript{{{mark[1:]}}}" if mark else text


def _escaped_note(note: str) -> str:
    """Returns a note for LaTeX, its mark raised."""
    found = re.match(r"\^(\w+) ", note)
    return rf"\textsuperscript{{{found.group(1)}}} {escaped(note[found.end() :])}" if found else escaped(note)
