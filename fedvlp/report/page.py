"""One page that holds all of a comparison: tables, figures, configs and versions; it asks for no other file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files

from fedvlp.report.html import Html, definitions, html_table, joined, picture, tag
from fedvlp.report.pictures import pictures_of, saved_pictures
from fedvlp.report.runs_section import runs_section, versions_section
from fedvlp.report.series import complete_series
from fedvlp.results.compare import Table, tables
from fedvlp.results.grouping import describe_differences
from fedvlp.results.record import Record
from fedvlp.results.rendered_table import RenderedTable
from fedvlp.results.rendering import render_table, title
from fedvlp.version import __version__

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MAX_PICTURE_BYTES = 3_000_000
"""How large the pictures of single runs may be together; the others are named."""

Section = tuple[str, str, Html]
"""Anchor, heading and content."""


def report_page(records: Sequence[Record], problems: Sequence[str], heading: str) -> str:
    """Returns the page.

    Args:
        records: the runs.
        problems: what could not be read, a line each.
        heading: the page's title.
    """
    compared = tables(records)
    difference = describe_differences([table.group for table in compared])
    sections = [section for section in _sections(records, problems, compared) if section[2]]
    body = tag(
        "body",
        _header(records, heading, difference),
        _contents(sections),
        tag("main", *(_section(*section) for section in sections)),
        _footer(),
    )
    return "<!doctype html>\n" + tag("html", _head(heading), body, lang="en") + "\n"


def _sections(records: Sequence[Record], problems: Sequence[str], compared: Sequence[Table]) -> list[Section]:
    """Returns the sections of the page, of which some may have no content."""
    explanations, picture_problems = _explanations(records)
    comparisons = [
        (f"table-{number}", title(table.group.about), _comparison(table)) for number, table in enumerate(compared, 1)
    ]
    return [
        ("problems", "What is missing", _problems([*problems, *picture_problems])),
        *comparisons,
        ("explanations", "Inside single runs", explanations),
        ("runs", "Runs", runs_section(records)),
        ("versions", "Environment", versions_section(records)),
    ]


def _head(heading: str) -> Html:
    """Returns the head, which forbids the browser to load anything."""
    style = files("fedvlp.report").joinpath("page.css").read_text(encoding="utf-8")
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", heading),
        tag("style", Html(style)),
    )


def _header(records: Sequence[Record], heading: str, difference: str) -> Html:
    """Returns the title and what the page is about."""
    methods = sorted({record.method for record in records})
    about = f"{_count(len(records), 'run')} of {_count(len(methods), 'method')}: {', '.join(methods)}."
    rule = (
        "Accuracies are in percent, after the last round and after the round that was best on source validation. "
        "Held-out and test images choose nothing."
    )
    return tag("header", tag("h1", heading), *(tag("p", text) for text in (about, rule, difference) if text))


def _contents(sections: Sequence[Section]) -> Html:
    links = [tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name, _ in sections]
    return tag("nav", tag("ul", *links), aria_label="Contents")


def _section(anchor: str, name: str, inside: Html) -> Html:
    return tag("section", tag("h2", name), inside, id=anchor, class_=anchor.partition("-")[0])


def _problems(lines: Sequence[str]) -> Html:
    if not lines:
        return Html()
    return tag("ul", *(tag("li", line) for line in lines))


def _comparison(table: Table) -> Html:
    """Returns what a table's runs have in common, the table, and its figures."""
    series, left_out = complete_series(table)
    figures = [picture(one.image(), "svg", one.title, one.caption, one.alt) for one in pictures_of(table, series)]
    parts = [_about(table), html_table(_rendered(table))]
    if figures or left_out:
        parts.append(tag("h3", "Figures"))
    if left_out:
        parts.append(tag("p", f"Not in the figures, as no seed has every held-out domain: {'; '.join(left_out)}."))
    if figures:
        parts.append(tag("div", *figures, class_="figures"))
    return joined(parts)


def _rendered(table: Table) -> RenderedTable:
    """Returns the table as ``fedvlp compare`` prints it, without what stands above it on the page."""
    rendered = render_table(table)
    return replace(rendered, title=f"Accuracy in %, {table.group.about['data']}", lines=rendered.lines[1:])


def _about(table: Table) -> Html:
    """Returns data, protocol, splits and backbone of a table's runs."""
    records = table.group.records
    data = records[0].data
    saved_seconds = sum(record.features.get("saved_seconds", 0.0) for record in records)
    entries = [
        *table.group.about.items(),
        ("domains", ", ".join(data.get("domains", table.domains))),
        ("split hashes", ", ".join(dict.fromkeys(_split(record) for record in records))),
        ("seeds", ", ".join(map(str, table.seeds)) or "none"),
        ("runs", f"{len(records)}, {sum(record.seconds for record in records):,.0f} s of rounds"),
    ]
    if saved_seconds:
        entries.append(("feature cache", f"saved {saved_seconds:,.0f} s"))
    parts = [definitions(entries)]
    names = data.get("classes", [])
    if names:
        parts.append(tag("details", tag("summary", _count(len(names), "class name")), tag("p", ", ".join(names))))
    return joined(parts)


def _split(record: Record) -> str:
    """Returns the hash of a run's split, with what it holds out."""
    held_out = " and ".join(record.held_out)
    return f"{record.split} ({held_out} held out)" if held_out else record.split


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
            parts += [tag("h3", f"{record.method}: {record.folder}"), tag("div", *figures, class_="figures")]
    return joined(parts), problems


def _footer() -> Html:
    return tag("footer", tag("p", f"Made by fedvlp {__version__}."))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
