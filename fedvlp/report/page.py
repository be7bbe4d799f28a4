"""One page that holds all of a comparison: tables, figures, configs and versions; it asks for no other file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files

from fedvlp.report.html import Html, definitions, joined, picture, sheet_table, tag
from fedvlp.report.pictures import pictures_of, saved_pictures
from fedvlp.report.rows import complete_rows
from fedvlp.report.runs_section import runs_section, versions_section
from fedvlp.results.compare import Table, tables
from fedvlp.results.compare_sheets import sheet, title
from fedvlp.results.formats import Sheet
from fedvlp.results.grouping import told_apart
from fedvlp.results.record import Record
from fedvlp.version import __version__

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MOST_BYTES = 3_000_000
"""How much the pictures of single runs may weigh together; the rest is named."""


def report_page(records: Sequence[Record], problems: Sequence[str], heading: str) -> str:
    """Returns the page.

    Args:
        records: the runs.
        problems: what could not be read, a line each.
        heading: the page's title.
    """
    compared = tables(records)
    explained, found = _explanations(records)
    sections = [
        ("problems", "What is missing", _problems([*problems, *found])),
        *((f"table-{i}", title(table.group.about), _comparison(table)) for i, table in enumerate(compared, 1)),
        ("explanations", "Inside single runs", explained),
        ("runs", "Runs", runs_section(records)),
        ("versions", "Environment", versions_section(records)),
    ]
    shown = [part for part in sections if part[2]]
    inside = joined([_header(records, heading, told_apart([table.group for table in compared])), _contents(shown)])
    main = tag("main", *(_section(*part) for part in shown))
    return "<!doctype html>\n" + tag("html", _head(heading), tag("body", inside, main, _footer()), lang="en") + "\n"


def _head(heading: str) -> Html:
    """Returns what a browser must know first, such as that nothing is to be loaded."""
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


def _contents(sections: Sequence[tuple[str, str, Html]]) -> Html:
    """Returns links to the sections."""
    links = [tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name, _ in sections]
    return tag("nav", tag("ul", *links), aria_label="Contents")


def _section(anchor: str, name: str, inside: Html) -> Html:
    """Returns a section with its heading."""
    return tag("section", tag("h2", name), inside, id=anchor, class_=anchor.partition("-")[0])


def _problems(lines: Sequence[str]) -> Html:
    """Returns what could not be read, or nothing."""
    return tag("ul", *(tag("li", line) for line in lines)) if lines else Html()


def _comparison(table: Table) -> Html:
    """Returns what a table's runs have in common, the table, and its figures."""
    rows, left_out = complete_rows(table)
    drawn = [picture(made.image(), "svg", made.title, made.caption, made.alt) for made in pictures_of(table, rows)]
    reason = f"Not in the figures, as no seed has every held-out domain: {'; '.join(left_out)}." if left_out else ""
    return joined(
        [
            _about(table),
            sheet_table(_sheet(table)),
            tag("h3", "Figures") if drawn or reason else Html(),
            tag("p", reason) if reason else Html(),
            tag("div", *drawn, class_="figures") if drawn else Html(),
        ]
    )


def _sheet(table: Table) -> Sheet:
    """Returns the table as ``fedvlp compare`` prints it, without what stands above it on the page."""
    whole = sheet(table)
    return replace(whole, title=f"Accuracy in %, {table.group.about['data']}", lines=whole.lines[1:])


def _about(table: Table) -> Html:
    """Returns data, protocol, splits and backbone of a table's runs."""
    records = table.group.records
    data = records[0].data
    saved = sum(record.features.get("saved_seconds", 0.0) for record in records)
    entries = [
        *table.group.about.items(),
        ("domains", ", ".join(data.get("domains", table.domains))),
        ("split hashes", ", ".join(dict.fromkeys(_split(record) for record in records))),
        ("seeds", ", ".join(map(str, table.seeds)) or "none"),
        ("runs", f"{len(records)}, {sum(record.seconds for record in records):,.0f} s of rounds"),
    ]
    entries += [("feature cache", f"saved {saved:,.0f} s")] if saved else []
    names = data.get("classes", [])
    classes = tag("details", tag("summary", _count(len(names), "class name")), tag("p", ", ".join(names)))
    return joined([definitions(entries), classes if names else Html()])


def _split(record: Record) -> str:
    """Returns the hash of a run's split, with what it holds out."""
    held_out = " and ".join(record.held_out)
    return f"{record.split} ({held_out} held out)" if held_out else record.split


def _explanations(records: Sequence[Record]) -> tuple[Html, list[str]]:
    """Returns the pictures that lie in runs' folders, as many as the page can carry, and what is wrong with them."""
    parts: list[Html] = []
    problems: list[str] = []
    total = 0
    for record in records:
        saved, found = saved_pictures(record)
        problems += found
        figures = []
        for one in saved:
            size = one.path.stat().st_size
            if total + size > MOST_BYTES:
                problems.append(f"{one.path} is left out, to keep this page small.")
                continue
            total += size
            figures.append(picture(one.path.read_bytes(), "png", one.title, one.caption, one.alt))
        if figures:
            parts += [tag("h3", f"{record.method}: {record.folder}"), tag("div", *figures, class_="figures")]
    return joined(parts), problems


def _footer() -> Html:
    """Returns what made the page."""
    return tag("footer", tag("p", f"Made by fedvlp {__version__}."))


def _count(number: int, noun: str) -> str:
    """Returns a number of things."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
