"""HTML in which text is always escaped: what is not marked as HTML can't become markup."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence

from fedvlp.results.formats import Sheet

MARK = re.compile(r"\^([0-9a-z]+(?:,[0-9a-z]+)*)$")
VOID = ("img", "meta", "br")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *inside: str, **attributes: str) -> Html:
    """Returns an element; whatever in it is not ``Html`` is escaped.

    An underscore at the end of an attribute's name is left out, others are hyphens.

    >>> tag("p", "a < b ", tag("b", "&"), class_='"big"')
    '<p class="&quot;big&quot;">a &lt; b <b>&amp;</b></p>'
    """
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{given}>" if name in VOID else f"<{name}{given}>{joined(inside)}</{name}>")


def joined(parts: Sequence[str]) -> Html:
    """Returns parts one after the other, escaped where they are not HTML."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def sheet_table(sheet: Sheet) -> Html:
    """Returns a table with its caption, the lines around it, and raised marks; it scrolls alone where it is wide."""
    kinds = ["word" if column < sheet.texts else "number" for column in range(len(sheet.head))]
    titles = zip(sheet.head, kinds, strict=True)
    head = tag("tr", *(tag("th", *_raised(cell), scope="col", class_=kind) for cell, kind in titles))
    rows = [tag("tr", *map(_cell, row, range(len(row)), kinds)) for row in sheet.rows]
    table = tag("table", tag("caption", sheet.title), tag("thead", head), tag("tbody", *rows))
    notes = [tag("p", *_raised_first(note), class_="note") for note in sheet.notes]
    lines = [tag("p", line, class_="note") for line in sheet.lines]
    return joined([*lines, scrolling(table, sheet.title), *notes])


def scrolling(inside: Html, name: str) -> Html:
    """Returns something wide in a box that scrolls, also by keyboard."""
    return tag("div", inside, class_="scroll", role="region", aria_label=name, tabindex="0")


def picture(image: bytes, kind: str, title: str, caption: str, alt: str) -> Html:
    """Returns a figure that holds its image itself.

    Args:
        image: content of the image's file.
        kind: "svg" or "png".
        title: what the figure is called.
        caption: what stands below it.
        alt: what is read to those who can't see it.
    """
    media = {"svg": "image/svg+xml", "png": "image/png"}[kind]
    source = f"data:{media};base64,{base64.b64encode(image).decode('ascii')}"
    return tag("figure", tag("img", src=source, alt=alt), tag("figcaption", tag("strong", f"{title}."), f" {caption}"))


def definitions(entries: Sequence[tuple[str, str]]) -> Html:
    """Returns names with what they stand for."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in entries))


def _cell(cell: str, column: int, kind: str) -> Html:
    """Returns a cell; the first of a row is its name."""
    return tag("td", *_raised(cell), class_=kind) if column else tag("th", *_raised(cell), scope="row")


def _raised(cell: str) -> list[str]:
    """Returns a cell's text and its marks, raised."""
    found = MARK.search(cell)
    return [cell[: found.start()], tag("sup", found.group(1))] if found else [cell]


def _raised_first(note: str) -> list[str]:
    """Returns a note that may begin with its mark, raised."""
    found = re.match(r"\^(\w+) ", note)
    return [tag("sup", found.group(1)), f" {note[found.end() :]}"] if found else [note]
