"""The style of figures, names and files, and the figure of a run."""

from fedvlp.core.roles import ROLES
from fedvlp.results.figures import (
    COLOURS,
    HATCHES,
    LINES,
    MARKERS,
    MAX_SERIES,
    Picture,
    accuracy_figure,
    add_legend,
    escape_text,
    new_axes,
    series_style,
)

HISTORY = [
    {"round": 1, "validation/ink": 50.0, "validation": 50.0, "held_out/photo": 30.0, "held_out": 30.0},
    {"round": 2},
    {"round": 3, "validation/ink": 60.0, "validation": 60.0, "held_out/photo": 45.0, "held_out": 45.0},
]
BASELINE = {"validation/ink": 40.0, "validation": 40.0, "held_out/photo": 25.0, "held_out": 25.0}


def drawn(figure):
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in figure.axes[0].lines
        if not line.get_label().startswith("_")
    }


def test_accuracy_of_evaluated_rounds():
    means = {name: value + 30 for name, value in BASELINE.items()}
    baselines = {"zero-shot CLIP": BASELINE, "class means": means}
    figure = accuracy_figure(HISTORY, baselines, "TRIP\nheld-out domain: photo")
    lines = drawn(figure)
    assert lines["photo (held out)"] == ([1, 3], [30, 45])
    assert lines["ink (validation)"] == ([1, 3], [50, 60])
    assert {"zero-shot CLIP", "class means"} <= set(lines)
    unnamed = [line for line in figure.axes[0].lines if line.get_label().startswith("_")]
    assert sorted(line.get_ydata()[0] for line in unnamed) == [25, 40, 55, 70]
    assert figure.get_suptitle() == "TRIP\nheld-out domain: photo"


def test_every_role_is_drawn():
    row = {"round": 1, **dict.fromkeys(ROLES, 50.0), **{f"{role}/ink": 50.0 for role in ROLES}}
    assert {"ink (validation)", "ink (held out)"} <= set(drawn(accuracy_figure([row], {}, "TRIP")))


def test_styles_differ_in_each_option():
    for values in (COLOURS, LINES, MARKERS, HATCHES):
        assert len(set(values)) == len(values) == MAX_SERIES
    assert series_style(MAX_SERIES + 2) == series_style(2)


def test_names_are_drawn_unchanged():
    figure, (axes,) = new_axes(["accuracy (%)"], "round", ["_x", "a $b$ <c>"])
    for name in ("_x", "a $b$ <c>"):
        axes.plot([1], [1], label=escape_text(name))
    add_legend(figure, axes)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [" _x", r"a \$b\$ <c>"]
    figure.canvas.draw()


def test_files_of_equal_pictures_are_equal():
    first, second = (Picture(new_axes(["accuracy (%)"], "round")[0], "TRIP", "", "") for _ in range(2))
    assert first.image() == second.image()
    assert first.image().lstrip().startswith(b"<?xml")
    assert first.image("png").startswith(b"\x89PNG")
