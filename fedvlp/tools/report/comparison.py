"""What a page shows of one table: the table, its figures under one legend, and the classes."""

from __future__ import annotations

from dataclasses import replace

from fedvlp.results.compare import Table
from fedvlp.results.ranking import contestants, ranked
from fedvlp.results.rendered_table import RenderedTable
from fedvlp.results.rendering import render_table
from fedvlp.tools.report.beside_accuracy import beside_accuracy
from fedvlp.tools.report.classes import classes_section
from fedvlp.tools.report.html import Html, html_table, joined, picture, tag
from fedvlp.tools.report.legend import legend
from fedvlp.tools.report.pictures import pictures_of, share_a_legend
from fedvlp.tools.report.series import complete_series

NUM_LEADING_COLUMNS = 2
"""Method and round, before the domains and their average."""


def comparison(table: Table) -> Html:
    """Returns the table in the order of its results, its figures, what is beside accuracy, and that of each class."""
    table = ranked(table)
    parts = [html_table(_rendered(table), _best_row(table)), _figures(table)]
    more = beside_accuracy(table)
    if more:
        parts += [tag("h3", "Beside accuracy"), more]
    series, _ = complete_series(table)
    classes = classes_section(series, table.role) if series else Html()
    if classes:
        parts += [tag("h3", "Classes"), classes]
    return joined(parts)


def _rendered(table: Table) -> RenderedTable:
    """Returns the table as ``fedvlp compare`` prints it, but the average first and all remarks below."""
    rendered = render_table(table)
    place = NUM_LEADING_COLUMNS + len(table.domains)
    rows = tuple(_average_first(row, place) for row in rendered.rows)
    return replace(
        rendered,
        title=f"Accuracy in %, {table.group.about['data']}",
        lines=(),
        head=_average_first(rendered.head, place),
        rows=rows,
        # The first line repeats the page's details.
        notes=(*rendered.notes, *rendered.lines[1:]),
    )


def _average_first(cells: tuple[str, ...], place: int) -> tuple[str, ...]:
    """Returns a row's cells with that of one place before the domains, where a narrow screen shows it."""
    return (*cells[:NUM_LEADING_COLUMNS], cells[place], *cells[NUM_LEADING_COLUMNS:place], *cells[place + 1 :])


def _best_row(table: Table) -> int | None:
    """Returns the place of the highest average of a last round, if there are several to choose from."""
    rows = contestants(table)
    return table.rows.index(rows[0]) if len(rows) > 1 else None


def _figures(table: Table) -> Html:
    """Returns the figures below one legend, and what they leave out."""
    series, left_out = complete_series(table)
    figures = [picture(one.image(), "svg", one.title, one.caption, one.alt) for one in pictures_of(table, series)]
    parts: list[Html] = []
    if figures or left_out:
        parts.append(tag("h3", "Figures"))
    if left_out:
        parts.append(tag("p", f"Not in the figures, as no seed has every held-out domain: {'; '.join(left_out)}."))
    if figures and share_a_legend(series):
        parts.append(legend(series, table.role))
    if figures:
        parts.append(tag("div", *figures, class_="figures"))
    return joined(parts)
