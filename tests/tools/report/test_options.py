"""Hyperparameter studies are found among the rows of a table."""

from fedvlp.results import find_records
from fedvlp.tools.report.options import option_studies
from tests.helpers.report_runs import write_run


def studies(folder):
    return option_studies(find_records([folder])[0])


def test_star_of_two_options_is_two_studies(tmp_path):
    for options in ((4, 0.8), (2, 0.8), (8, 0.8), (4, 0.2), (4, 1.0)):
        write_run(tmp_path, [50.0], options=dict(zip(("num_experts", "kl_weight"), options, strict=True)))
    found = {study.option: sorted(study.series) for study in studies(tmp_path)}
    assert found == {"num_experts": [2, 4, 8], "kl_weight": [0.2, 0.8, 1.0]}


def test_two_values_words_and_truths_are_no_study(tmp_path):
    for index, routing in enumerate(("token", "image", "random")):
        write_run(tmp_path, [50.0], options={"routing": routing, "same_start": index == 0, "num_experts": 2})
    write_run(tmp_path, [50.0], options={"routing": "token", "same_start": True, "num_experts": 4})
    assert studies(tmp_path) == []


def test_studies_of_one_option_say_in_what_they_differ(tmp_path):
    for experts in (2, 4):
        for length in (1, 2, 4):
            write_run(tmp_path, [50.0], options={"num_experts": experts, "prompt_length": length})
    assert [study.setting for study in studies(tmp_path)] == ["num_experts=2", "num_experts=4"]


def test_values_are_compared_on_held_out_domains_that_all_have(tmp_path):
    for length in (1, 2, 4):
        write_run(tmp_path, [50.0 + length], "photo", options={"prompt_length": length})
    write_run(tmp_path, [99.0], "sketch", options={"prompt_length": 2})
    (study,) = studies(tmp_path)
    assert {value: series.means("held_out") for value, series in study.series.items()} == {
        1: [51.0],
        2: [52.0],
        4: [54.0],
    }


def test_seeds_have_no_order(tmp_path):
    for seed in (0, 1, 2):
        write_run(tmp_path, [50.0], options={"key_seed": seed})
    (study,) = studies(tmp_path)
    assert study.is_of_seeds
