"""Figures of one run."""

from fedvlp.results.figures import accuracy_figure, communication_figure

HISTORY = [
    {
        "round": 1,
        "total_bytes": 1e6,
        "validation/ink": 50.0,
        "validation": 50.0,
        "held_out/photo": 30.0,
        "held_out": 30.0,
    },
    {"round": 2, "total_bytes": 2e6},
    {
        "round": 3,
        "total_bytes": 1e6,
        "validation/ink": 60.0,
        "validation": 60.0,
        "held_out/photo": 45.0,
        "held_out": 45.0,
    },
]
BASELINE = {"validation/ink": 40.0, "validation": 40.0, "held_out/photo": 25.0, "held_out": 25.0}


def drawn(figure):
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in figure.axes[0].lines
        if not line.get_label().startswith("_")
    }


def test_accuracy_of_evaluated_rounds():
    figure = accuracy_figure(HISTORY, BASELINE, "TRIP\nheld-out domain: photo")
    lines = drawn(figure)
    assert lines["photo (held out)"] == ([1, 3], [30, 45])
    assert lines["ink (validation)"] == ([1, 3], [50, 60])
    assert "zero-shot CLIP" in lines
    assert sorted(line.get_ydata()[0] for line in figure.axes[0].lines if line.get_label().startswith("_")) == [25, 40]
    assert figure.get_suptitle() == "TRIP\nheld-out domain: photo"


def test_accuracy_against_all_that_was_sent_so_far():
    lines = drawn(communication_figure(HISTORY, BASELINE, "TRIP"))
    assert lines["held-out mean"] == ([1, 4], [30, 45])
    assert lines["source validation mean"] == ([1, 4], [50, 60])
    (legend,) = communication_figure(HISTORY, BASELINE, "TRIP").legends
    assert "zero-shot CLIP" in [text.get_text() for text in legend.get_texts()]


def test_nothing_evaluated_is_drawn_empty():
    assert drawn(accuracy_figure([{"round": 1, "total_bytes": 8.0}], {}, "TRIP")) == {}
