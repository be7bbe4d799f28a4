"""Figures of a search by ``fedvlp tune``: what more trials bring."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from matplotlib.ticker import MaxNLocator

from fedvlp.results.figures import MAX_SERIES, Picture, add_legend, escape_text, new_axes, series_style
from fedvlp.tools.tune.choice import TUNE_FILE, Choice, read_choices


def tuning_pictures(folders: Sequence[Path]) -> list[Picture]:
    """Returns the figures of the searches to which some folders belong, of at most ``MAX_SERIES`` methods each.

    Raises:
        UserError: if a search's file is damaged.
    """
    pictures = []
    # The runs of a search are in two folders beside its file.
    places = {place.resolve(): None for folder in folders for place in (folder, folder.parent)}
    for path in (place / TUNE_FILE for place in places):
        if path.is_file():
            choices = read_choices(path)
            labels = list({choice.label: None for choice in choices if len(choice.trials) > 1})
            for start in range(0, len(labels), MAX_SERIES):
                pictures.append(best_so_far(choices, labels[start : start + MAX_SERIES]))
    return pictures


def best_so_far(choices: Sequence[Choice], labels: Sequence[str]) -> Picture:
    """The accuracy of the trial that the first trials choose, over their number, of some methods.

    On source validation, which chooses, left, and on the images that methods are compared on right.
    """
    titles = ["source validation (%)", "compared images (%)"]
    figure, panels = new_axes(titles, "trials", labels)
    for index, label in enumerate(labels):
        own = [choice for choice in choices if choice.label == label]
        number = range(1, 1 + min(len(choice.trials) for choice in own))
        for axes, name in zip(panels, ("validation", "compared"), strict=True):
            curves = [_chosen_of_first(choice, getattr(choice, name)) for choice in own]
            means = [statistics.mean(curve[count - 1] for curve in curves) for count in number]
            axes.plot(number, means, **series_style(index), markersize=3.5, linewidth=1.3, label=escape_text(label))
    for axes in panels:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(figure, panels[0])
    return Picture(
        figure,
        "Choice of options",
        "Accuracy of the trial that is best on source validation among the first ones, over their number, mean over "
        "held-out domains: on source validation, which chooses, and on the images that methods are compared on.",
        f"Line chart of accuracy over the number of trials of {', '.join(labels)}.",
    )


def _chosen_of_first(choice: Choice, accuracies: Sequence[float]) -> list[float]:
    """Returns for each number of first trials the accuracy of the one that they choose."""
    best = accumulate(range(len(choice.trials)), lambda old, new: _better(choice, old, new))
    return [accuracies[trial] for trial in best]


def _better(choice: Choice, old: int, new: int) -> int:
    return new if choice.validation[new] > choice.validation[old] else old
