import re

import pytest

from fedvlp.results.compare import repeat_warnings, tables
from fedvlp.results.rendering import render_table
from fedvlp.results.tidy import tidy_rows
from tests.helpers.records import DATA, make_record

DOMAINS = DATA["domains"]


def whole(method="PromptFL", seeds=(0, 1), **other):
    """Returns a run for each seed and held-out domain; accuracies are 10, 20, 30 and 40, one more for each seed."""
    runs = []
    for seed in seeds:
        for index, domain in enumerate(DOMAINS):
            value = 10.0 * (index + 1) + seed
            runs.append(make_record(value, held_out=domain, seed=seed, method=method, **other))
    return runs


def rows(table):
    """Returns the cells of a rendered table, by column, of each method and round."""
    rendered = render_table(table)
    return {(row[0], row[1]): dict(zip(rendered.head, row, strict=True)) for row in rendered.rows}


def test_one_table_has_every_domain_and_the_average_over_seeds():
    (table,) = tables(whole() + whole("TRIP", best=77.0))
    found = rows(table)
    assert list(found) == [
        ("zero-shot CLIP", "-"),
        ("PromptFL", "last"),
        ("PromptFL", "best"),
        ("TRIP", "last"),
        ("TRIP", "best"),
    ]
    row = found["PromptFL", "last"]
    assert [row[name] for name in DOMAINS] == ["10.5 ± 0.7", "20.5 ± 0.7", "30.5 ± 0.7", "40.5 ± 0.7"]
    assert row["average"] == "25.5 ± 0.7"
    assert row["spread"] == "11.2 ± 0.0"
    assert (row["up"], row["bytes"], row["seconds"]) == ("8,192", "65,536", "2")
    assert found["TRIP", "best"]["average"] == "77.0 ± 0.0"
    assert found["zero-shot CLIP", "-"]["average"] == "40.0"
    assert "seeds 0, 1" in " ".join(render_table(table).lines)


def test_a_missing_cell_leaves_no_average():
    runs = whole() + [run for run in whole("TRIP") if run.held_out != ("photo",)]
    row = rows(tables(runs)[0])["TRIP", "last"]
    assert row["photo"] == row["average"] == row["spread"] == "-"
    assert row["cartoon"] == "20.5 ± 0.7"


def test_an_average_over_some_domains_says_so():
    (table,) = tables([run for run in whole() if run.held_out[0] in ("cartoon", "photo")])
    row = rows(table)["PromptFL", "last"]
    assert row["average of 2 of 4"] == "25.5 ± 0.7"
    assert "sketch" not in row
    assert "average of 2 of 4" in {cell["column"] for cell in tidy_rows(table, 1)}


def test_cells_of_fewer_seeds_say_how_many():
    runs = [run for run in whole(seeds=(0, 1, 2)) if (run.seed, run.held_out) != (2, ("photo",))]
    row = rows(tables(runs)[0])["PromptFL", "last"]
    assert row["photo"] == "30.5 ± 0.7 (n=2)"
    assert row["average"] == "25.5 ± 0.7 (n=2)"
    assert row["cartoon"] == "21.0 ± 1.0"


def test_one_seed_has_no_deviation():
    row = rows(tables(whole(seeds=(4,)))[0])["PromptFL", "last"]
    assert [row[name] for name in (*DOMAINS, "average")] == ["14.0", "24.0", "34.0", "44.0", "29.0"]


def test_zero_shot_stands_once_whoever_measured_it():
    own = {"method": "ZeroShotCLIP", "baseline": None, "optimizer": None}
    for templates in (1, 60):
        runs = []
        for domain in DOMAINS:
            for seed, rounds in ((0, 0), (1, 15)):
                options = {"templates": templates}
                runs.append(make_record(41.0, held_out=domain, seed=seed, options=options, rounds=rounds, **own))
        found = rows(tables(whole(baseline=41.0) + runs)[0])
        titles = [method for method, choice in found if choice == "-"]
        assert titles == ["zero-shot CLIP"] + ["zero-shot CLIP, 60 templates"] * (templates == 60)
        assert {found[title, "-"]["average"] for title in titles} == {"41.0"}
        assert {found[title, "-"]["up"] for title in titles} == {"-"}


def test_held_out_domains_together_are_columns_of_one_run():
    pairs = (("art_painting", "cartoon"), ("photo", "sketch"))
    (table,) = tables([make_record(50.0, held_out=pair, seed=0) for pair in pairs])
    assert rows(table)["PromptFL", "last"]["average"] == "50.0"
    assert not repeat_warnings(table)
    again = [make_record(60.0, held_out=("cartoon", "photo"), seed=0)]
    (table,) = tables([*table.group.records, *again])
    assert len(repeat_warnings(table)) == 1
    assert rows(table)["PromptFL", "last"]["cartoon"] == "60.0"


@pytest.mark.parametrize(("fraction", "role"), [(0.2, "test"), (0.0, "validation")])
def test_where_all_domains_train_the_test_splits_count(fraction, role):
    scores = {f"{role}/{name}": 10.0 for name in DOMAINS} | {f"validation/{name}": 10.0 for name in DOMAINS}
    run = make_record(
        held_out=(),
        accuracy={"last round (3)": scores, "best on source validation (2)": scores},
        data={"kind": "all domains seen", "test_fraction": fraction},
    )
    (table,) = tables([run])
    assert table.role == role
    assert rows(table)["PromptFL", "last"]["average"] == "10.0"
    assert ("there is no test split" in " ".join(render_table(table).lines)) == (role == "validation")


def test_versions_are_noted_where_they_differ():
    assert not render_table(tables(whole() + whole("TRIP"))[0]).notes
    rendered = render_table(tables(whole() + whole("TRIP", versions={"fedvlp": "1", "torch": "3"}))[0])
    assert {row[0] for row in rendered.rows} == {"zero-shot CLIP^a", "PromptFL^b", "TRIP^c"}
    assert rendered.notes[1:] == ("^b fedvlp 1, torch 2", "^c fedvlp 1, torch 3")


def test_different_communication_is_a_range():
    runs = whole()
    runs[0].communication["upload_parameters"] = 1
    assert rows(tables(runs)[0])["PromptFL", "last"]["up"] == "1-8,192"


def test_only_the_asked_round_has_a_row():
    (table,) = tables(whole(best=60.0), ("best",))
    assert [row.selection for row in table.rows] == ["", "best"]
    assert rows(table)["PromptFL", "best"]["average"] == "60.0 ± 0.0"


def test_tidy_cells_are_those_of_the_table():
    (table,) = tables(whole())
    cells = {(cell["round"], cell["column"]): cell for cell in tidy_rows(table, 1) if cell["method"] == "PromptFL"}
    assert cells["last", "photo"]["mean"] == pytest.approx(30.5)
    assert cells["last", "photo"]["std"] == pytest.approx(0.5**0.5)
    assert cells["last", "photo"]["n"] == 2
    assert cells["last", "upload_parameters"]["mean"] == 8192
    assert cells["last", "photo"]["backbone"] == "CLIP ViT-B-16, weights abcd"
    assert re.search(r"validation 20 %", cells["last", "photo"]["split"])
