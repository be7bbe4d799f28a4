"""Which pictures a report shows: those of a table's runs, and those that were made of single runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TypeVar

from fedvlp.core.roles import role_title
from fedvlp.results.compare import Table
from fedvlp.results.style import MAX_SERIES, Picture
from fedvlp.tools.report.bars import domain_bars, seed_boxes
from fedvlp.tools.report.curves import accuracy_over_communication, accuracy_over_rounds, option_curve
from fedvlp.tools.report.options import OptionStudy, option_studies
from fedvlp.tools.report.series import MethodSeries, domain_columns

Item = TypeVar("Item")
MIN_SEEDS = 3
"""How many seeds a method must have for a box."""


def share_a_legend(series: Sequence[MethodSeries]) -> bool:
    """Whether one legend can name the methods for all figures: each has one series, and no two look alike."""
    return len({one.example.method for one in series}) == len(series) <= MAX_SERIES


def pictures_of(table: Table, series: Sequence[MethodSeries]) -> Iterator[Picture]:
    """Yields the figures of one table; those of many methods are several figures.

    They have no legends of methods where these ``share_a_legend``.

    Args:
        table: all runs, from which hyperparameter curves take what they need.
        series: the table's complete series.
    """
    legend = not share_a_legend(series)
    yield from _round_curves(series, table.role, legend)
    yield from _communication_curves(series, table.role, legend)
    yield from _in_parts(series, lambda part: domain_bars(part, table.role, legend))
    yield from _training_boxes(series, table.role)
    for study in option_studies(table.group.records):
        yield _study_picture(study, table.role)


def _round_curves(series: Sequence[MethodSeries], role: str, legend: bool) -> Iterator[Picture]:
    """Yields curves of the methods that were evaluated in several rounds, beside those that train nothing."""
    if any(map(_has_curve, series)):
        yield from _in_parts(
            series,
            lambda part: accuracy_over_rounds(part, role, legend),
            lambda method: _has_curve(method) or not method.is_trained,
        )


def _communication_curves(series: Sequence[MethodSeries], role: str, legend: bool) -> Iterator[Picture]:
    """Yields accuracy against communication, unless nothing was sent."""

    def draw(methods: Sequence[str]) -> Picture:
        part = [one for one in series if one.example.method in methods]
        return accuracy_over_communication(part, role, legend)

    if any(one.parameters for one in series):
        yield from _in_parts(list(dict.fromkeys(one.example.method for one in series)), draw)


def _training_boxes(series: Sequence[MethodSeries], role: str) -> Iterator[Picture]:
    """Yields a box for each method that has enough seeds, over what these gave."""

    def draw(part: Sequence[MethodSeries]) -> Picture:
        means = {method.label: method.means(role) for method in part}
        return seed_boxes(means, f"Mean {role_title(role)}", "training", [method.index for method in part])

    yield from _in_parts(series, draw, lambda method: len(method.means(role)) >= MIN_SEEDS)


def _study_picture(study: OptionStudy, role: str) -> Picture:
    """Returns a curve over an option's values, or, of a seed, boxes for each domain."""
    method = f"{study.method} ({study.setting})" if study.setting else study.method
    if not study.is_of_seeds:
        return option_curve(method, study.option, study.series, role)
    accuracies: dict[str, list[float]] = {}
    for title, name in domain_columns(study.series.values(), role).items():
        means = [one.means(name) for one in study.series.values()]
        accuracies[title] = [fmean(of_seeds) for of_seeds in means if of_seeds]
    return seed_boxes(accuracies, f"{method}: {role_title(role)}", study.option.replace("_seed", ""))


def _in_parts(
    items: Sequence[Item],
    draw: Callable[[Sequence[Item]], Picture],
    is_drawn: Callable[[Item], bool] = lambda item: True,
) -> Iterator[Picture]:
    """Yields a picture, or several that are about equally full, of neighbours that one figure can tell apart."""
    if not items:
        return
    num_parts = math.ceil(len(items) / MAX_SERIES)
    size = math.ceil(len(items) / num_parts)
    parts = []
    for start in range(0, len(items), size):
        part = [item for item in items[start : start + size] if is_drawn(item)]
        if part:
            parts.append(part)
    for number, part in enumerate(parts, start=1):
        picture = draw(part)
        if len(parts) > 1:
            picture = replace(picture, title=f"{picture.title} ({number} of {len(parts)})")
        yield picture


def _has_curve(method: MethodSeries) -> bool:
    """Whether a method was evaluated in several rounds."""
    return len(method.curve("validation")) > 1
