"""Tables as LaTeX, for the package booktabs."""

from __future__ import annotations

import re

from fedvlp.results.rendered_table import RenderedTable, split_marks, split_note

SPECIAL = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "|": r"$|$",
    "<": "$<$",
    ">": "$>$",
}
"""Characters that LaTeX would not print as they are, and how they are written."""


def latex_table(table: RenderedTable) -> str:
    """Returns a ``table`` environment with caption, and notes below."""
    columns = "l" * table.text_columns + "r" * (len(table.head) - table.text_columns)
    caption = ". ".join(escape(line) for line in (table.title, *table.lines))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}.}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _row(table.head),
        r"\midrule",
        *map(_row, table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *map(_note, table.notes),
        r"\end{table}",
    ]
    return "\n".join(lines)


def escape(text: str) -> str:
    r"""Returns text as LaTeX prints it.

    >>> escape("art_painting 50 % ± 1")
    'art\\_painting 50 \\% $\\pm$ 1'
    """
    return "".join(SPECIAL.get(character, character) for character in text)


def _row(cells: tuple[str, ...]) -> str:
    return " & ".join(map(_cell, cells)) + r" \\"


def _cell(cell: str) -> str:
    """Returns an escaped cell with raised marks, and a minus sign in place of a negative number's hyphen."""
    text, marks = split_marks(cell)
    is_negative = re.match(r"-\d", text) is not None
    text = f"$-${escape(text[1:])}" if is_negative else escape(text)
    return f"{text}\\textsuperscript{{{marks}}}" if marks else text


def _note(note: str) -> str:
    mark, text = split_note(note)
    raised = rf"\textsuperscript{{{mark}}} " if mark else ""
    return rf"\par\footnotesize {raised}{escape(text)}"
