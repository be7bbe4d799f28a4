"""Rendered tables as text, Markdown or LaTeX."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from fedvlp.results.latex import latex_table
from fedvlp.results.rendered_table import RenderedTable, split_marks, split_note
from fedvlp.utils.text_table import align_columns, markdown_cell, markdown_table, markdown_text

TableFormat = Literal["table", "markdown", "latex"]
PAGE_WIDTH = 100  # characters


def format_tables(tables: Sequence[RenderedTable], form: TableFormat) -> str:
    """Returns tables one below the other, two empty lines apart."""
    formatters: Mapping[TableFormat, Callable[[RenderedTable], str]] = {
        "table": _text_table,
        "markdown": _markdown_table,
        "latex": latex_table,
    }
    return "\n\n\n".join(formatters[form](table) for table in tables)


def _text_table(table: RenderedTable) -> str:
    columns = [
        _pad_marks(cells, is_text=index < table.text_columns)
        for index, cells in enumerate(zip(table.head, *table.rows, strict=True))
    ]
    rows = list(zip(*columns, strict=True))
    head, *body = (line.rstrip() for line in align_columns(rows, table.text_columns))
    width = max(len(line) for line in (head, *body))
    lines = [table.title, *_wrap(table.lines, width), "", head, "-" * width, *body]
    if table.notes:
        lines += ["", *_wrap(table.notes, width)]
    return "\n".join(lines)


def _pad_marks(cells: Sequence[str], is_text: bool) -> list[str]:
    """Returns a column's cells with marks of equal width, so that digits line up whether marks follow them or not."""
    parts = [split_marks(cell) for cell in cells]
    raised = [f"^{marks}" if marks else "" for _, marks in parts]
    width_of_marks = max(len(marks) for marks in raised)
    if not is_text:
        return [text + marks.ljust(width_of_marks) for (text, _), marks in zip(parts, raised, strict=True)]
    width = max(len(text) for text, _ in parts) + width_of_marks
    return [cell.ljust(width) for cell in cells]


def _wrap(lines: Sequence[str], width: int) -> list[str]:
    """Returns lines no longer than the table is wide, or than a page where the table is narrower."""
    return [textwrap.fill(line, max(width, PAGE_WIDTH), subsequent_indent="   ") for line in lines]


def _markdown_table(table: RenderedTable) -> str:
    alignment = ["---"] * table.text_columns + ["---:"] * (len(table.head) - table.text_columns)
    head = [_markdown_cell(cell) for cell in table.head]
    rows = [list(map(_markdown_cell, row)) for row in table.rows]
    parts = [
        f"**{markdown_text(table.title)}**",
        "  \n".join(map(markdown_text, table.lines)),
        markdown_table(head, alignment, rows),
        "\n".join(f"* {_markdown_note(note)}" for note in table.notes),
    ]
    return "\n\n".join(part for part in parts if part)


def _markdown_cell(cell: str) -> str:
    text, marks = split_marks(markdown_cell(cell))
    return f"{text}<sup>{marks}</sup>" if marks else text


def _markdown_note(note: str) -> str:
    mark, text = split_note(markdown_text(note))
    return f"<sup>{mark}</sup> {text}" if mark else text
