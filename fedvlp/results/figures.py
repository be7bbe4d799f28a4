"""Common style of figures, for paper columns, grey print and colour-blind readers, and the figure of a run."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedvlp.core.roles import BASELINES, ROLES
from fedvlp.results.rounds import History, is_accuracy
from fedvlp.utils.files import read_json, write_bytes, write_json

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A00")
"""Colours after Okabe and Ito, Color universal design, 2008."""

# No purely dotted pattern, because dotted lines are baselines.
DASHES = ((4, 1.5), (6, 1.5, 1, 1.5), (2, 1), (8, 1), (3, 1, 1, 1, 1, 1), (1.5, 2.5), (6, 2, 2, 2))
LINES: tuple[Any, ...] = ("-", *((0, dashes) for dashes in DASHES))
BASELINE_LINES: dict[str, Any] = dict(zip(BASELINES.values(), (":", (0, (1, 4))), strict=True))
"""Dotted line styles of baselines, by row title."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

# Only lines, because dotted hatches make large files.
HATCHES = ("", "///", "\\\\\\", "xx", "--", "||", "++", "//--")

MAX_SERIES = len(COLOURS)
"""Maximum number of distinguishable series in a figure."""

FIGURE_FILE = "accuracy.png"
CAPTIONS = "captions.json"
COLUMN_WIDTH = 3.5
"""Width of a paper column in inches."""

FONT_SIZE = 8
SMALL_FONT_SIZE = 7
MAX_LINE_LENGTH = 52
"""Number of characters in a line of a column."""


@dataclass(frozen=True)
class Picture:
    """A figure, made without pyplot, with title, caption and alternative text."""

    figure: Figure
    title: str
    caption: str
    alt: str

    def image(self, kind: Literal["svg", "png", "pdf"] = "svg") -> bytes:
        """Render the figure as the content of a file, reproducibly."""
        file = io.BytesIO()
        # By default, an SVG contains a date and random identifiers, and a PDF a date and fonts that journals reject.
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        with matplotlib.rc_context({"svg.hashsalt": self.title, "pdf.fonttype": 42}):
            self.figure.savefig(file, format=kind, metadata=metadata)
        return file.getvalue()


Files = dict[str, Picture | str]
"""Pictures and tables by file name; file names start with the kind."""


def write_explanations(folder: Path, explanations: Mapping[str, Files]) -> list[Path]:
    """Write the files of each kind and ``captions.json``, and return the files' paths.

    In ``captions.json``, the new pictures replace earlier pictures of the same kinds; other kinds stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # `fedvlp report` shows the listed pictures in this order.
    captions = folder / CAPTIONS
    listed = read_json(captions) if captions.is_file() else []
    listed = [entry for entry in listed if not entry["file"].startswith(tuple(explanations))]
    written = []
    for files in explanations.values():
        for name, content in files.items():
            written.append(folder / name)
            if isinstance(content, str):
                write_bytes(folder / name, content.encode())
                continue
            listed.append({"file": name, "title": content.title, "caption": content.caption, "alt": content.alt})
            write_bytes(folder / name, content.image("png"))
    write_json(captions, listed)
    return written


def series_style(index: int) -> dict[str, Any]:
    """Choose matplotlib's options of a series; ``MAX_SERIES`` consecutive series differ in every option."""
    style = index % MAX_SERIES
    return {"color": COLOURS[style], "linestyle": LINES[style], "marker": MARKERS[style]}


def new_axes(vertical: Sequence[str], horizontal: str, labels: Sequence[str] = ()) -> tuple[Figure, list[Axes]]:
    """Make a figure of panels in a row, each one column wide, with space for a legend of ``labels`` below.

    ``vertical`` contains the titles of the vertical axes, and ``horizontal`` is the title of all horizontal axes.
    """
    # The legend increases the height of the figure, so that the axes of all figures have equal height.
    legend_lines = sum(escape_text(label).count("\n") + 1 for label in labels)
    height = 2.3 + 0.14 * (legend_lines / _legend_columns(labels))
    figure = Figure(figsize=(COLUMN_WIDTH * len(vertical), height), dpi=300, layout="constrained")
    panels = list(figure.subplots(1, len(vertical), squeeze=False)[0])
    for axes, name in zip(panels, vertical, strict=True):
        axes.set_xlabel(horizontal, fontsize=FONT_SIZE)
        axes.set_ylabel(name, fontsize=FONT_SIZE)
        axes.tick_params(labelsize=SMALL_FONT_SIZE)
        axes.grid(color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def add_legend(figure: Figure, axes: Axes) -> None:
    """Add a legend of the axes' series below the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=_legend_columns(labels),
        fontsize=SMALL_FONT_SIZE,
        frameon=False,
        handlelength=3.2,
        columnspacing=1.2,
    )


def escape_text(text: str) -> str:
    r"""Escape a string so that matplotlib draws it unchanged, and wrap it to the width of a column.

    >>> print(escape_text("a_$b$"))
    a_\$b\$
    """
    wrapped = "\n".join(textwrap.wrap(text, MAX_LINE_LENGTH, break_on_hyphens=False)) or text
    escaped = wrapped.replace("$", r"\$")
    # Matplotlib omits labels with a leading underscore from legends.
    return f" {escaped}" if escaped.startswith("_") else escaped


def _legend_columns(labels: Sequence[str]) -> int:
    return 2 if labels and max(map(len, labels)) <= 22 else 1


def accuracy_figure(
    history: History, baselines: Mapping[str, Mapping[str, float]], title: str, score: str = "accuracy"
) -> Figure:
    """Draw accuracy in percent over rounds: thin lines for validation, bold for test, dotted for baselines."""
    evaluated = [row for row in history if "validation" in row]
    labels = _domain_labels(evaluated)
    figure, (axes,) = new_axes([f"{score} (%)"], "round", [*labels.values(), *baselines])
    for index, (name, label) in enumerate(labels.items()):
        style = series_style(index)
        linewidth = 1.0 if name.startswith("validation") else 2.2
        rounds = [row["round"] for row in evaluated]
        accuracies = [row[name] for row in evaluated]
        axes.plot(rounds, accuracies, **style, linewidth=linewidth, markersize=3.5, label=escape_text(label))
        for row, scores in baselines.items():
            if name in scores:
                axes.axhline(scores[name], color=style["color"], linestyle=BASELINE_LINES[row], linewidth=1.0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for row in baselines:
        # A single legend entry for all lines of a baseline.
        axes.plot([], [], color="0.4", linestyle=BASELINE_LINES[row], label=row)
    escaped = "\n".join(map(escape_text, title.splitlines()))
    figure.suptitle(escaped, fontsize=SMALL_FONT_SIZE, x=0.02, horizontalalignment="left")
    if axes.get_legend_handles_labels()[1]:
        add_legend(figure, axes)
    return figure


def _domain_labels(evaluated: History) -> dict[str, str]:
    labels = {}
    for name in sorted(evaluated[-1]) if evaluated else []:
        role, _, domain = name.partition("/")
        if domain and is_accuracy(name) and not ROLES[role].by_client:
            labels[name] = f"{domain} ({ROLES[role].title.replace('-', ' ')})"
    return labels
