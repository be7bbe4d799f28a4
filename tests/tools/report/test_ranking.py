"""The order of methods, and the sentence of what was found."""

from fedvlp.results import find_records
from fedvlp.tools.compare.tables import tables
from fedvlp.tools.report.ranking import finding
from tests.helpers.report_runs import write_run


def table_of(folder):
    (table,) = tables(find_records([folder])[0])
    return table


def write(folder, method, *by_seed):
    for seed, value in enumerate(by_seed):
        write_run(folder, [value], "photo", seed, method, {})


def test_a_clear_lead(tmp_path):
    write(tmp_path, "PLAN", 45.0, 46.0)
    write(tmp_path, "TRIP", 51.0, 53.0)
    assert finding(table_of(tmp_path)) == (
        "trip has the highest result, 52.0 ± 1.4 % mean accuracy on held-out domains (1 of 3) over 2 seeds: "
        "6.5 points above plan and 12.0 points above zero-shot CLIP."
    )


def test_a_lead_within_the_deviations_says_so(tmp_path):
    """The deviations are 1.41 and 0.71, together 2.12; the lead is 2."""
    write(tmp_path, "PLAN", 50.0, 49.0)
    write(tmp_path, "TRIP", 50.5, 52.5)
    assert "plan (within the deviations over seeds, so not shown to differ)" in finding(table_of(tmp_path))


def test_one_seed_and_equal_results(tmp_path):
    write(tmp_path, "PLAN", 47.0)
    write(tmp_path, "TRIP", 47.0)
    said = finding(table_of(tmp_path))
    assert "level with trip and 7.0 points above zero-shot CLIP; one seed does not show" in said
    assert "over one seed" in said


def test_zero_shot_is_not_beaten(tmp_path):
    write(tmp_path, "TRIP", 38.0, 37.0)
    assert finding(table_of(tmp_path)) == (
        "No trained method is above zero-shot CLIP, which has 40.0 % mean accuracy on held-out domains (1 of 3): "
        "the best of them, trip, is 2.5 points behind."
    )
