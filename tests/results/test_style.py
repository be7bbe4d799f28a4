"""The style: series that differ without colour, names as they are, files that do not change."""

from fedvlp.results.style import (
    COLOURS,
    HATCHES,
    LINES,
    MARKERS,
    MAX_SERIES,
    Picture,
    add_legend,
    escape_text,
    new_axes,
    series_style,
)


def test_styles_differ_in_each_way_alone():
    for values in (COLOURS, LINES, MARKERS, HATCHES):
        assert len(set(values)) == len(values) == MAX_SERIES
    assert series_style(MAX_SERIES + 2) == series_style(2)


def test_names_are_drawn_as_they_are():
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
