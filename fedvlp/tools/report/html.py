"""HTML in which text is always escaped: what is not marked as HTML can't become markup."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence

from fedvlp.results.rendered_table import RenderedTable, split_marks, split_note

VOID = ("img", "meta", "br")
"""Elements that have nothing inside and no closing tag."""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *inside: str, **attributes: str) -> Html:
    """Returns an element; whatever in it is not ``Html`` is escaped.

    An underscore at the end of an attribute's name is left out, others are hyphens.

    >>> tag("p", "a < b ", tag("b", "&"), class_='"big"')
    '<p class="&quot;big&quot;">a &lt; b <b>&amp;</b></p>'
    """
    given = ""
    for key, value in attributes.items():
        given += f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
    if name in VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{joined(inside)}</{name}>")


def joined(parts: Sequence[str]) -> Html:
    """Returns parts one after the other, escaped where they are not HTML."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def html_table(rendered: RenderedTable, best: int | None = None) -> Html:
    """Returns a table with its caption, the lines around it, and raised marks; it scrolls alone where it is wide.

    Args:
        rendered: the table.
        best: the index of the row that is marked; none if not given.
    """
    kinds = ["word" if column < rendered.text_columns else "number" for column in range(len(rendered.head))]
    titles = [
        tag("th", *_raise_marks(cell), scope="col", class_=kind)
        for cell, kind in zip(rendered.head, kinds, strict=True)
    ]
    rows = [_row(row, kinds, index == best) for index, row in enumerate(rendered.rows)]
    table = tag(
        "table",
        tag("caption", rendered.title),
        tag("thead", tag("tr", *titles)),
        tag("tbody", *rows),
    )
    lines = [tag("p", line, class_="note") for line in rendered.lines]
    notes = [tag("p", *_raise_first_mark(note), class_="note") for note in rendered.notes]
    return joined([*lines, scrolling(table, rendered.title), *notes])


def scrolling(inside: Html, name: str) -> Html:
    """Returns an element in a box that scrolls by itself where it is wide, also by keyboard."""
    return tag("div", inside, class_="scroll", role="region", aria_label=name, tabindex="0")


def picture(image: bytes, kind: str, title: str, caption: str, alt: str) -> Html:
    """Returns a figure that holds its image itself; a photograph, which has words in it, scrolls where it is wide.

    Args:
        image: content of the image's file.
        kind: "svg" or "png".
        title: what the figure is called.
        caption: what stands below it.
        alt: what is read to those who can't see it.
    """
    image_element = tag("img", src=embedded(image, kind), alt=alt)
    # Charts are white, and are turned dark on a dark page; photographs stay as they are.
    looks = "chart" if kind == "svg" else "photograph"
    shown = image_element if kind == "svg" else scrolling(image_element, title)
    return tag("figure", shown, tag("figcaption", tag("strong", f"{title}."), f" {caption}"), class_=looks)


def embedded(image: bytes, kind: str) -> str:
    """Returns an image of the kind "svg" or "png" as an address that holds it."""
    media_type = {"svg": "image/svg+xml", "png": "image/png"}[kind]
    return f"data:{media_type};base64,{base64.b64encode(image).decode('ascii')}"


def folded(summary: str, *inside: str) -> Html:
    """Returns what a reader unfolds by its summary."""
    return tag("details", tag("summary", summary), *inside)


def definitions(entries: Sequence[tuple[str, str]]) -> Html:
    """Returns names with what they stand for."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in entries))


def _row(row: Sequence[str], kinds: Sequence[str], is_best: bool) -> Html:
    """Returns a row, the first cell of which is its name; the best one is marked by more than its colour."""
    name, *others = row
    mark = [tag("span", " ★ highest", class_="mark")] if is_best else []
    cells = [tag("th", *_raise_marks(name), *mark, scope="row")]
    cells += [tag("td", *_raise_marks(cell), class_=kind) for cell, kind in zip(others, kinds[1:], strict=True)]
    return tag("tr", *cells, class_="best") if is_best else tag("tr", *cells)


def _raise_marks(cell: str) -> list[str]:
    text, marks = split_marks(cell)
    return [text, tag("sup", marks)] if marks else [text]


def _raise_first_mark(note: str) -> list[str]:
    mark, text = split_note(note)
    return [tag("sup", mark), f" {text}"] if mark else [text]
