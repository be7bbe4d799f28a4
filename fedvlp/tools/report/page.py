"""One page that holds all of a comparison: tables, figures, configs and versions; it asks for no other file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from importlib.resources import files

from fedvlp.results.compare import Table, tables
from fedvlp.results.finding import finding
from fedvlp.results.grouping import describe_differences
from fedvlp.results.record import Record
from fedvlp.results.rendering import title
from fedvlp.results.saved_pictures import saved_pictures
from fedvlp.tools.report.comparison import comparison
from fedvlp.tools.report.details import details
from fedvlp.tools.report.html import Html, joined, picture, tag
from fedvlp.version import __version__

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MAX_PICTURE_BYTES = 3_000_000
"""How large the pictures of single runs may be together; the others are named."""

Section = tuple[str, str, Html]
"""Anchor, heading and content."""


def report_page(
    records: Sequence[Record], problems: Sequence[str], heading: str, day: date, oracle: bool = False
) -> str:
    """Returns the page.

    Args:
        records: the runs.
        problems: what could not be read, a line each.
        heading: the page's title.
        day: the page's date.
        oracle: whether tables have a row of the round that is best on the images compared, marked as not allowed.
    """
    compared = tables(records, ("last", "best", "oracle") if oracle else ("last", "best"))
    sections = [section for section in _sections(records, problems, compared) if section[2]]
    body = tag(
        "body",
        _header(records, compared, heading, day),
        _contents(sections),
        tag("main", *(_section(*section) for section in sections)),
        page_footer(),
    )
    return "<!doctype html>\n" + tag("html", page_head(heading), body, lang="en") + "\n"


def _sections(records: Sequence[Record], problems: Sequence[str], compared: Sequence[Table]) -> list[Section]:
    """Returns the sections of the page, of which some may have no content."""
    explanations, picture_problems = _explanations(records)
    comparisons = [
        (_anchor(number), _table_title(table, compared), comparison(table)) for number, table in _numbered(compared)
    ]
    return [
        ("problems", "What is missing", _problems([*problems, *picture_problems])),
        *comparisons,
        ("explanations", "Inside single runs", explanations),
        ("details", "Details", details(records, compared)),
    ]


def _numbered(compared: Sequence[Table]) -> list[tuple[int, Table]]:
    return list(enumerate(compared, start=1))


def _anchor(number: int) -> str:
    return f"table-{number}"


def _table_title(table: Table, compared: Sequence[Table]) -> str:
    """Returns the heading of a table: all that it is of only where there are others."""
    about = table.group.about
    return title(about) if len(compared) > 1 else f"{about['data']}, {about['protocol']}"


def page_head(heading: str) -> Html:
    """Returns the head, which forbids the browser to load anything."""
    style = files("fedvlp.tools.report").joinpath("page.css").read_text(encoding="utf-8")
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", heading),
        tag("style", Html(style)),
    )


def _header(records: Sequence[Record], compared: Sequence[Table], heading: str, day: date) -> Html:
    """Returns the title, the date, and what was found."""
    methods = sorted({record.method for record in records})
    about = f"{counted(len(records), 'run')} of {counted(len(methods), 'method')}: {', '.join(methods)}."
    written = f"{day.day} {day:%B %Y}"
    return tag(
        "header",
        tag("h1", heading),
        tag("p", tag("time", written, datetime=day.isoformat()), class_="date"),
        _findings(compared),
        tag("p", about, class_="note"),
    )


def _findings(compared: Sequence[Table]) -> Html:
    """Returns one sentence on each table, after the one that says why there are several."""
    if len(compared) == 1:
        return tag("p", finding(compared[0]), class_="finding")
    sentences = []
    for number, table in _numbered(compared):
        link = tag("a", _table_title(table, compared), href=f"#{_anchor(number)}")
        sentences.append(tag("li", link, f": {finding(table)}"))
    difference = describe_differences([table.group for table in compared])
    return joined([tag("p", f"{difference}."), tag("ul", *sentences, class_="finding")])


def _contents(sections: Sequence[Section]) -> Html:
    links = [tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name, _ in sections]
    return tag("nav", tag("ul", *links), aria_label="Contents")


def _section(anchor: str, name: str, inside: Html) -> Html:
    return tag("section", tag("h2", name), inside, id=anchor, class_=anchor.partition("-")[0])


def _problems(lines: Sequence[str]) -> Html:
    if not lines:
        return Html()
    return tag("ul", *(tag("li", line) for line in lines))


def _explanations(records: Sequence[Record]) -> tuple[Html, list[str]]:
    """Returns the pictures that lie in runs' folders, as many as the page can carry, and what is wrong with them."""
    parts: list[Html] = []
    problems: list[str] = []
    total_bytes = 0
    for record in records:
        saved, found = saved_pictures(record)
        problems += found
        figures = []
        for one in saved:
            size = one.path.stat().st_size
            if total_bytes + size > MAX_PICTURE_BYTES:
                problems.append(f"{one.path} is left out, to keep this page small.")
                continue
            total_bytes += size
            figures.append(picture(one.path.read_bytes(), "png", one.title, one.caption, one.alt))
        if figures:
            held_out = f", {' and '.join(record.held_out)} held out" if record.held_out else ""
            parts.append(tag("h3", f"{record.method}{held_out}, seed {record.seed}"))
            parts.append(tag("div", *figures, class_="figures"))
    return joined(parts), problems


def page_footer() -> Html:
    """Returns what made the page."""
    return tag("footer", tag("p", f"Made by fedvlp {__version__}."))


def counted(number: int, noun: str) -> str:
    """Returns a number of things.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
