"""Figures of a search by ``fedvlp tune``: what more trials bring, and which values do well."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from matplotlib.ticker import MaxNLocator

from fedvlp.results.figures import FONT_SIZE, MAX_SERIES, Picture, add_legend, escape_text, new_axes, series_style
from fedvlp.tools.report.figures import make_logarithmic
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
            pictures += [over_options([choice for choice in choices if choice.label == label]) for label in labels]
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


def over_options(choices: Sequence[Choice]) -> Picture:
    """The accuracy of a method's trials over the value of each option that was searched, a panel for each option.

    Args:
        choices: those of the method, whose trials are the same for each held-out domain.
    """
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
            accuracies = [getattr(choice, name) for choice in choices]
            of_trials = [statistics.mean(of_trial) for of_trial in zip(*accuracies, strict=True)]
            means = [of_trials[trial] for trial in by_trial]
            axes.plot(places, means, **{**series_style(index), "linestyle": "none"}, markersize=3.5, label=title)
        numbers = [place for place in places if isinstance(place, float)]
        if numbers and min(numbers) > 0 and max(numbers) / min(numbers) >= 10:
            make_logarithmic(axes)
    add_legend(figure, panels[0])
    label = choices[0].label
    return Picture(
        figure,
        f"{label}: values that were tried",
        f"Accuracy of the trials of {label} over the value of each option, mean over held-out domains. Other options "
        "change from trial to trial. Source validation chooses.",
        f"Charts of the accuracy of trials over {', '.join(values)}.",
    )


def _places(values: Sequence[str]) -> Sequence[float] | Sequence[str]:
    """Returns numbers, or words as they are if some are none."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return values


def _chosen_of_first(choice: Choice, accuracies: Sequence[float]) -> list[float]:
    """Returns for each number of first trials the accuracy of the one that they choose."""
    best = accumulate(range(len(choice.trials)), lambda old, new: _better(choice, old, new))
    return [accuracies[trial] for trial in best]


def _better(choice: Choice, old: int, new: int) -> int:
    return new if choice.validation[new] > choice.validation[old] else old
