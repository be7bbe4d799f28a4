"""Figures of a search by ``fedvlp tune``: what more trials bring, and which values do well."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from fedvlp.results.figures import FONT_SIZE, MAX_SERIES, Picture, add_legend, escape_text, new_axes, series_style
from fedvlp.tools.report.figures import use_suited_scale
from fedvlp.tools.tune.choice import TUNE_FILE, Choice, read_choices


def tuning_pictures(folders: Sequence[Path]) -> list[Picture]:
    """Draw the searches to which some folders belong, with at most ``MAX_SERIES`` methods in a figure."""
    pictures = []
    # A search keeps its runs in two folders next to its file.
    files = [place.resolve() / TUNE_FILE for folder in folders for place in (folder, folder.parent)]
    for file in dict.fromkeys(filter(Path.is_file, files)):
        by_label: dict[str, list[Choice]] = {}
        for choice in read_choices(file):
            if len(choice.trials) > 1:
                by_label.setdefault(choice.label, []).append(choice)
        searches = list(by_label.values())
        for start in range(0, len(searches), MAX_SERIES):
            pictures.append(best_so_far(searches[start : start + MAX_SERIES]))
        pictures += map(over_options, searches)
    return pictures


def best_so_far(searches: Sequence[Sequence[Choice]]) -> Picture:
    """Draw the accuracy of the trial that the first trials choose, over their number, for the choices of each method.

    The left panel has source validation, which chooses; the right panel has the images that methods are compared on.
    """
    titles = ["source validation (%)", "compared images (%)"]
    labels = [choices[0].label for choices in searches]
    figure, panels = new_axes(titles, "trials", labels)
    for index, choices in enumerate(searches):
        numbers = range(1, 1 + min(len(choice.trials) for choice in choices))
        for axes, name in zip(panels, ("validation", "compared"), strict=True):
            curves = []
            for choice in choices:
                chosen = [int(np.argmax(choice.validation[:number])) for number in numbers]
                curves.append([getattr(choice, name)[trial] for trial in chosen])
            means = np.mean(curves, axis=0)
            label = escape_text(labels[index])
            axes.plot(numbers, means, **series_style(index), markersize=3.5, linewidth=1.3, label=label)
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


def over_options(choices: Sequence[Choice]) -> Picture:
    """Draw the accuracy of a method's trials over the values of each searched option, a panel for each option."""
    values: dict[str, dict[int, str]] = {}  # by option and trial; the config as it is names none
    for trial, arguments in enumerate(choices[0].trials):
        for argument in arguments:
            option, _, value = argument.removeprefix("--").partition("=")
            values.setdefault(option, {})[trial] = value
    titles = {"validation": "source validation", "compared": "compared images"}
    figure, panels = new_axes(["accuracy (%)"] * len(values), "", list(titles.values()))
    for axes, (option, by_trial) in zip(panels, values.items(), strict=True):
        axes.set_xlabel(option, fontsize=FONT_SIZE)
        places = _places(list(by_trial.values()))
        for index, (name, title) in enumerate(titles.items()):
            means = np.mean([getattr(choice, name) for choice in choices], axis=0)[list(by_trial)]
            axes.plot(places, means, **{**series_style(index), "linestyle": "none"}, markersize=3.5, label=title)
        if isinstance(places[0], float):
            use_suited_scale(axes, places)
    add_legend(figure, panels[0])
    label = choices[0].label
    return Picture(
        figure,
        f"{label}: values that were tried",
        f"Accuracy of the trials of {label} over the value of each option, mean over held-out domains. Other options "
        "change from trial to trial. Source validation chooses.",
        f"Charts of the accuracy of trials over {', '.join(values)}.",
    )


def _places(values: Sequence[str]) -> list[Any]:
    """Convert values to numbers, or leave all of them as words if one is not a number."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return list(values)
