"""Accuracy of each class, and what its images were mostly taken for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from fedvlp.core.confusion import Confusion
from fedvlp.core.roles import role_title
from fedvlp.results.confusion import LAST_ROW, ZERO_SHOT_ROW
from fedvlp.results.record import Record
from fedvlp.results.rendered_table import RenderedTable
from fedvlp.tools.report.html import Html, folded, html_table, joined, tag
from fedvlp.tools.report.series import MethodSeries

MAX_OPEN_ROWS = 12
"""How many classes are shown before one unfolds the others."""


def classes_section(series: Sequence[MethodSeries], role: str) -> Html:
    """Returns a table of classes, those first that the first method knows least; empty where runs have not counted.

    Args:
        series: the methods, the best one first.
        role: on which images.
    """
    counted = _counted(series, role)
    if not counted:
        return Html()
    best = next(iter(counted))
    names = [str(name) for name in series[0].example.data.get("classes", [])]
    images = _images(series[0], role)
    classes = sorted(_totals(counted[best]), key=lambda label: (_percent(counted[best], label), label))
    rows = []
    for label in classes:
        accuracies = [f"{_percent(confusion, label):.1f}" for confusion in counted.values()]
        rows.append((names[label], f"{images[label]:,}", *accuracies, _mistake(counted[best], label, names)))
    note = (
        f"Images of a class that were classified rightly, in %, of all its {role_title(role)} images and all seeds "
        f"together, after the last round; the classes that {best} knows least come first."
    )
    head = ("class", "images", *counted, f"{best} mostly takes it for")
    whole = RenderedTable(f"All {len(rows)} classes", (), head, tuple(rows), 1)
    if len(rows) <= MAX_OPEN_ROWS:
        return joined([tag("p", note), html_table(whole)])
    hardest = RenderedTable(f"The {MAX_OPEN_ROWS} hardest classes", (), head, tuple(rows[:MAX_OPEN_ROWS]), 1)
    return joined([tag("p", note), html_table(hardest), folded(whole.title, html_table(whole))])


def _counted(series: Sequence[MethodSeries], role: str) -> dict[str, Confusion]:
    """Returns the counts of each method of which all runs have them, and of zero-shot CLIP."""
    counted: dict[str, Confusion] = {}
    for one in series:
        row = LAST_ROW if one.is_trained else ZERO_SHOT_ROW
        runs = _runs(one)
        if all(_of_role(run, row, role) for run in runs):
            counted[one.label] = _pooled(runs, row, role)
    if counted and all(one.is_trained for one in series):
        zero_shot = _pooled(_runs(series[0]), ZERO_SHOT_ROW, role)
        counted |= {ZERO_SHOT_ROW: zero_shot} if zero_shot else {}
    return counted


def _runs(one: MethodSeries) -> list[Record]:
    return list(chain.from_iterable(one.seeds))


def _of_role(run: Record, row: str, role: str) -> list[Confusion]:
    by_split = run.confusions.get(row, {})
    return [confusion for name, confusion in by_split.items() if name.split("/")[0] == role]


def _pooled(runs: Iterable[Record], row: str, role: str) -> Confusion:
    pooled: Confusion = Counter()
    for run in runs:
        for confusion in _of_role(run, row, role):
            pooled += confusion
    return pooled


def _images(one: MethodSeries, role: str) -> Counter[int]:
    """Returns how many images of each class one seed measured."""
    # Of zero-shot CLIP if it was measured: a method that keeps tensors on its clients counts an image for each of them.
    zero_shot = _pooled(one.seeds[0], ZERO_SHOT_ROW, role)
    return _totals(zero_shot or _pooled(one.seeds[0], LAST_ROW, role))


def _totals(confusion: Confusion) -> Counter[int]:
    totals: Counter[int] = Counter()
    for (true, _), count in confusion.items():
        totals[true] += count
    return totals


def _percent(confusion: Confusion, label: int) -> float:
    total = _totals(confusion)[label]
    return 100 * confusion[label, label] / total if total else 0.0


def _mistake(confusion: Confusion, label: int, names: Sequence[str]) -> str:
    """Returns the class that a class is most often taken for by mistake, with its share of the images."""
    wrong = {predicted: count for (true, predicted), count in confusion.items() if true == label != predicted}
    if not wrong:
        return "-"
    predicted = max(wrong, key=lambda each: (wrong[each], -each))
    return f"{names[predicted]} ({100 * wrong[predicted] / _totals(confusion)[label]:.0f} %)"
