"""Which figures a table gets."""

from matplotlib.colors import to_hex

from fedvlp.results import find_records
from fedvlp.results.compare import tables
from fedvlp.results.style import MAX_SERIES
from fedvlp.tools.report.pictures import pictures_of
from fedvlp.tools.report.series import complete_series
from tests.helpers.report_runs import write_run


def pictures(folder):
    (table,) = tables(find_records([folder])[0])
    return {picture.title: picture for picture in pictures_of(table, complete_series(table)[0])}


def test_figures_of_a_comparison(runs):
    assert list(pictures(runs)) == ["Accuracy over rounds", "Accuracy against communication", "Accuracy of each domain"]


def test_figures_have_legends_only_where_one_can_not_name_all(runs):
    def legends():
        return [bool(picture.figure.legends) for picture in pictures(runs).values()]

    assert legends() == [False, False, False]
    write_run(runs, [50.0, 51.0], options={"prompt_length": 4})
    write_run(runs, [50.0, 51.0], "sketch", options={"prompt_length": 4})
    assert legends() == [True, True, True]


def test_no_curve_of_one_round_and_no_communication_of_nothing(tmp_path):
    write_run(tmp_path, [50.0], parameters=0)
    assert list(pictures(tmp_path)) == ["Accuracy of each domain"]


def test_many_methods_are_several_figures_and_keep_their_colours(tmp_path):
    for index in range(MAX_SERIES + 2):
        for seed in range(3 if index else 1):
            write_run(tmp_path, [50.0 + seed], seed=seed, method=f"Method{index}", options={})
    found = pictures(tmp_path)
    colours = []
    for part in ("1 of 2", "2 of 2"):
        bars = {
            container.get_label(): to_hex(container.patches[0].get_facecolor())
            for container in found[f"Accuracy of each domain ({part})"].figure.axes[0].containers
            if hasattr(container, "patches")
        }
        boxes = {
            line.get_label(): to_hex(line.get_color())
            for line in found[f"Spread over training seeds ({part})"].figure.axes[0].lines
            if line.get_label().startswith("Method")
        }
        assert len(bars) == len(set(bars.values())) == 5
        assert boxes == {name: colour for name, colour in bars.items() if name != "Method0"}
        colours.append(bars)
    assert not colours[0].keys() & colours[1].keys()


def test_studies_of_options_and_of_seeds(tmp_path):
    for seed in (0, 1, 2):
        for length in (1, 2, 4):
            write_run(tmp_path, [50.0 + seed], options={"key_seed": seed, "prompt_length": length})
    titles = list(pictures(tmp_path))
    assert "TRIP (key_seed=1): prompt_length" in titles
    assert titles.count("Spread over key seeds") == 1
