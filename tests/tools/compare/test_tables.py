"""Tables of runs: mean and deviation over seeds, missing cells, the oracle, and the order of results."""

import math
import statistics
from dataclasses import replace

import pytest

from fedvlp.tools.compare.printing import describe_result, format_tables, table_text
from fedvlp.tools.compare.tables import AVERAGE, BEST, GAP, LAST, ORACLE, UNTRAINED, tables
from tests.helpers.records import DATA, make_record

DOMAINS = DATA["domains"]
ALL = (LAST, BEST, ORACLE)


def whole(method="PromptFL", seeds=(0, 1), **other):
    """Make a run per seed and held-out domain; accuracies are 10, 20, 30 and 40, plus the seed."""
    runs = []
    for seed in seeds:
        for index, domain in enumerate(DOMAINS):
            value = 10.0 * (index + 1) + seed
            runs.append(make_record(value, held_out=domain, seed=seed, method=method, **other))
    return runs


def rows(table):
    """Format the table; index its cells by method and round, then by column."""
    lines = table_text(table).frame.to_dict("records")
    return {(line["method"], line["round"]): line for line in lines}


def test_one_table_has_every_domain_and_the_average_over_seeds():
    (table,) = tables(whole() + whole("TRIP", best=77.0))
    found = rows(table)
    assert list(found) == [
        ("zero-shot CLIP", "-"),
        ("promptfl", "last"),
        ("promptfl", "best"),
        ("trip", "last"),
        ("trip", "best"),
    ]
    row = found["promptfl", "last"]
    assert [row[name] for name in DOMAINS] == ["10.5 ± 0.7", "20.5 ± 0.7", "30.5 ± 0.7", "40.5 ± 0.7"]
    assert row["average"] == "25.5 ± 0.7"
    assert row["spread"] == "11.2 ± 0.0"
    assert (row["up"], row["bytes"], row["seconds"]) == ("8,192", "65,536", "2")
    assert found["trip", "best"]["average"] == "77.0 ± 0.0"
    assert found["zero-shot CLIP", "-"]["average"] == "40.0"
    assert "seeds 0, 1" in " ".join(table_text(table).lines)


def test_cells_without_all_seeds_or_domains():
    runs = [run for run in whole(seeds=(0, 1, 2)) if (run.seed, run.held_out) != (2, ("photo",))]
    runs += [run for run in whole("TRIP") if run.held_out != ("photo",)]
    found = rows(tables(runs)[0])
    row = found["promptfl", "last"]
    assert row["photo"] == "30.5 ± 0.7 (n=2)"
    assert row["average"] == "25.5 ± 0.7 (n=2)"
    assert row["cartoon"] == "21.0 ± 1.0"
    row = found["trip", "last"]
    assert row["photo"] == row["average"] == row["spread"] == "-"
    assert row["cartoon"] == "20.5 ± 0.7 (n=2)"
    row = rows(tables(whole(seeds=(4,)))[0])["promptfl", "last"]
    assert [row[name] for name in (*DOMAINS, "average")] == ["14.0", "24.0", "34.0", "44.0", "29.0"]
    assert rows(tables([make_record()])[0])["promptfl", "last"]["spread"] == "-"


def test_zero_shot_has_one_row_from_any_run():
    runs = []
    for domain in DOMAINS:
        for seed, templates in ((0, 1), (1, 1), (0, 60)):
            accuracy = {"zero-shot CLIP": {f"held_out/{domain}": 41.0}}
            about = {"options": {"templates": templates}, "rounds": 0, "optimizer": None, "accuracy": accuracy}
            runs.append(make_record(held_out=domain, seed=seed, method="ZeroShotCLIP", **about))
    found = rows(tables(whole(baseline=41.0) + runs)[0])
    titles = [method for method, name in found if name == "-"]
    assert titles == ["zero-shot CLIP", "zero-shot CLIP, 60 templates"]
    assert {found[title, "-"]["average"] for title in titles} == {"41.0"}
    assert {found[title, "-"]["up"] for title in titles} == {"-"}


def add_class_means(record, value):
    """Add a row of class means to a run."""
    means = dict.fromkeys(record.accuracy["last round (3)"], value)
    return replace(record, accuracy={**record.accuracy, "class means": means})


def test_class_means_are_a_row_below_zero_shot():
    runs = [add_class_means(run, 70.0) for run in whole()] + whole("IVLP")
    (table,) = tables(runs)
    assert [method for method, name in table.rows if name == "-"] == ["zero-shot CLIP", "class means"]
    row = rows(table)["class means", "-"]
    assert (row["average"], row["up"], row["bytes"], row["seconds"]) == ("70.0", "-", "-", "-")
    assert describe_result(table).startswith("No trained method is above class means, which has 70.0 %")
    lower = [add_class_means(run, 20.0) for run in whole(baseline=21.0)]
    assert "4.5 points above zero-shot CLIP and 5.5 points above class means" in describe_result(tables(lower)[0])


@pytest.mark.parametrize(("fraction", "role"), [(0.2, "test"), (0.0, "validation")])
def test_if_all_domains_train_test_splits_are_compared(fraction, role):
    scores = {f"{role}/{name}": 10.0 for name in DOMAINS} | {f"validation/{name}": 10.0 for name in DOMAINS}
    run = make_record(
        held_out=(),
        accuracy={"last round (3)": scores, "best on source validation (2)": scores},
        data={"kind": "all domains seen", "test_fraction": fraction},
    )
    (table,) = tables([run])
    assert table.role == role
    assert rows(table)["promptfl", "last"]["average"] == "10.0"
    assert ("there is no test split" in " ".join(table_text(table).lines)) == (role == "validation")


def test_different_versions_are_noted():
    assert "torch" not in "".join(table_text(tables(whole() + whole("TRIP"))[0]).notes)
    text = table_text(tables(whole() + whole("TRIP", versions={"fedvlp": "1", "torch": "3"}))[0])
    assert set(text.frame["method"]) == {"zero-shot CLIP", "promptfl", "trip"}
    assert text.notes[1:3] == ["fedvlp 1, torch 2: promptfl", "fedvlp 1, torch 3: trip"]


CURVES = {
    ("photo", 0): [50.0, 56.0, 54.0],
    ("photo", 1): [51.0, None, 53.0],  # a round that was not evaluated
    ("sketch", 0): [40.0, 41.5, 45.0],  # the last is the best
    ("sketch", 1): [47.0, 44.0, 43.0],
}


def make_run_with_history(held_out, seed, values, role="held_out", **other):
    """Make a run with these accuracies by round; source validation chose the second round."""
    record = make_record(values[-1], best=values[1] or 1.0, held_out=held_out, seed=seed, **other)
    history = []
    for number, value in enumerate(values, start=1):
        measured = {} if value is None else {f"{role}/{held_out}": value, role: value, "validation": 60.0}
        history.append({"round": float(number), "seconds": 3.0, **measured})
    vars(record)["history"] = history
    return record


def make_runs_with_history(**other):
    return [make_run_with_history(domain, seed, values, **other) for (domain, seed), values in CURVES.items()]


def test_each_run_has_its_highest_round_and_the_gap_is_paired_by_seed():
    (table,) = tables(make_runs_with_history(), ALL)
    best, gap = [], []
    for seed in (0, 1):
        curves = [values for (_, each), values in CURVES.items() if each == seed]
        best.append(statistics.mean(max(value for value in values if value is not None) for values in curves))
        gap.append(best[-1] - statistics.mean(values[-1] for values in curves))
    row = ("promptfl", ORACLE)
    assert table.cell(row, "photo").mean == pytest.approx((56.0 + 53.0) / 2)
    assert table.cell(row, AVERAGE).mean == pytest.approx(statistics.mean(best))
    assert table.cell(row, GAP)[:2] == pytest.approx((statistics.mean(gap), statistics.stdev(gap)))
    assert table.cell(("promptfl", LAST), GAP) is None


def test_no_oracle_without_complete_history_or_on_source_validation():
    (table,) = tables([*make_runs_with_history(), make_record(50.0, held_out="photo", seed=7)], ALL)
    assert {name for _, name in table.rows} == {UNTRAINED, LAST, BEST}
    row = {"last round (1)": {"validation/photo": 40.0, "validation": 40.0}}
    record = make_record(held_out=(), accuracy=row, data={"kind": "all domains seen"})
    vars(record)["history"] = [{"round": 1.0, "validation": 70.0}]
    (table,) = tables([record], ALL)
    assert {name for _, name in table.rows} == {LAST}


def test_rows_are_ranked_by_average_with_missing_averages_last():
    (table,) = tables(whole() + whole("TRIP", best=77.0) + [make_record(99.0, method="PLAN")])
    assert list(dict.fromkeys(method for method, _ in table.sort_rows().rows)) == [
        "zero-shot CLIP",
        "promptfl",
        "trip",
        "plan",
    ]
    assert [method for method, _ in table.sort_rows().compared_rows] == ["zero-shot CLIP", "promptfl", "trip"]
    assert math.isnan(table.cell(("plan", LAST), "sketch").std)


def test_a_method_that_was_never_evaluated_is_named_below_the_table():
    accuracy = {"last round (3)": {"validation": 9.0}}
    (table,) = tables([*whole(), make_record(method="PLAN", accuracy=accuracy)], ALL)
    assert table_text(table).notes[0] == "plan: not evaluated in any of these rounds"
    (unmeasured,) = tables([make_record(method="PLAN", accuracy=accuracy)], ALL)
    assert unmeasured.rows == []
    assert len(table_text(unmeasured).notes) == 1
    assert describe_result(unmeasured).startswith("No method was evaluated")


BASE_TO_NEW = {"kind": "base-to-new", "new_classes": ["cow", "hen"]}
PERSONAL = {"kind": "personal"}
CROSS = {"kind": "cross-dataset", "targets": [{"name": "Toys", "images": "0f"}, {"name": "Icons", "images": "1e"}]}


def run(method, seed, data, row):
    """Make a finished run with results after the last round only."""
    accuracy = {"zero-shot CLIP": dict.fromkeys(row, 30.0), "last round (3)": {"validation": 50.0, **row}}
    return make_record(method=method, seed=seed, held_out=(), data=data, accuracy=accuracy)


def base_to_new(method, seed, base, new):
    harmonic = 2 * base * new / (base + new)
    row = {"test/ink": base, "test": base, "test_new/ink": new, "test_new": new, "test_harmonic": harmonic}
    return run(method, seed, BASE_TO_NEW, row)


def personal(method, seed, own, shared):
    row = {"personal": sum(own) / 2, "personal_worst": min(own), "personal_spread": abs(own[0] - own[1]) / 2}
    row |= {"global": sum(shared) / 2, "global_worst": min(shared), "global_spread": 0.0}
    row |= {"personal/a": own[0], "personal/b": own[1], "global/a": shared[0], "global/b": shared[1]}
    return run(method, seed, PERSONAL, row)


def test_base_to_new_is_ranked_by_the_harmonic_mean_of_each_seed():
    runs = [
        base_to_new("Narrow", 0, 90.0, 30.0),
        base_to_new("Wide", 0, 60.0, 60.0),
        base_to_new("Wide", 1, 40.0, 60.0),
    ]
    (table,) = tables(runs)
    assert table.columns == ("Base", "New")
    wide, narrow, _ = table.sort_rows().compared_rows
    assert (wide, narrow) == (("Wide", LAST), ("Narrow", LAST))
    assert table.cell(wide, AVERAGE).mean == pytest.approx((60 + 48) / 2)  # not of the mean classes, 50 and 60
    assert table.cell(narrow, AVERAGE).mean == pytest.approx(45.0)
    assert [table.cell(wide, name).mean for name in table.columns] == [50.0, 60.0]
    text = table_text(table)
    assert list(text.frame)[2:5] == ["Base", "New", "H"]
    assert "spread" not in text.frame
    assert "Wide has the highest result, 54.0 ± 8.5 % harmonic mean of the accuracies on base and" in describe_result(
        table
    )
    assert "new classes: 2, names" in format_tables([text], "table")


def test_personal_has_worst_client_and_global_model_next_to_the_mean():
    (table,) = tables([personal("FedOTP", 0, (90.0, 60.0), (50.0, 70.0))])
    assert table.columns == ("worst client", "spread of clients", "global model", "its worst client")
    row = ("fed_otp", LAST)
    assert [table.cell(row, name).mean for name in (*table.columns, AVERAGE)] == [60.0, 15.0, 60.0, 50.0, 75.0]
    assert "75.0 % mean accuracy of the clients' own models on their own test images" in describe_result(table)


def test_other_data_sets_are_columns():
    row = {"transfer/Toys": 40.0, "transfer/Icons": 60.0, "transfer": 50.0}
    (table,) = tables([run("PromptFL", 0, CROSS, row)])
    assert (table.columns, table.average_title) == (("Icons", "Toys"), "average")
    (partial,) = tables([run("PromptFL", 0, CROSS, {"transfer/Toys": 40.0, "transfer": 40.0})])
    assert partial.average_title == "average of 1 of 2"


def warnings(*records):
    (table,) = tables(records)
    return table_text(table).notes


def make_run_at_rate(rate, value, **other):
    """Make a run with all rounds of its config, and the best round before the last."""
    return make_record(value, rounds=15, optimizer={"class": "SGD", "lr": rate}, **other)


def test_a_table_warns_of_fewer_rounds_than_in_the_config():
    assert warnings(make_run_at_rate(0.1, 50.0), make_run_at_rate(0.1, 51.0, seed=1)) == []
    note = "fewer rounds than in the config: promptfl 8 of 15, adapt 8 of 200"
    assert warnings(make_record(50.0, rounds=8), make_record(50.0, method="ADAPT", rounds=8)) == [note]


def make_imbalanced_run(value, balanced, low, largest=70.0, seed=0, **other):
    """Make a run with the same scores by class before and after training."""
    scores = {"balanced_accuracy": balanced, "low": low, "high": low + 9.0, "chance": 50.0, "largest_class": largest}
    scores |= {"predicted_class": "intact", "predicted": 70.0, "images": largest}
    row_scores = {"held_out/sketch": scores, "held_out": scores}
    return make_run_at_rate(
        0.1, value, seed=seed, balance={"zero-shot CLIP": row_scores, "last round": row_scores}, **other
    )


def test_balanced_accuracy_is_shown_for_imbalanced_classes():
    (table,) = tables([make_imbalanced_run(71.0, 52.0, 51.0), make_imbalanced_run(73.0, 55.0, 51.0, seed=1)], [LAST])
    assert list(table_text(table).frame)[3:7] == ["average of 1 of 4", "balanced", "largest class", "spread"]
    found = rows(table)["promptfl", "last"]
    assert (found["balanced"], found["largest class"]) == ("53.5 ± 2.1", "70.0 ± 0.0")
    assert (
        "on held-out domains (1 of 4) over 2 seeds (balanced 53.5 ± 2.1, largest class 70.0 ± 0.0): 3"
        in describe_result(table)
    )
    (even,) = tables([make_imbalanced_run(71.0, 52.0, 51.0, largest=54.0)])
    assert "balanced" not in table_text(even).frame


def test_accuracies_of_head_and_tail_are_shown_for_a_long_tail():
    images = {"dog": 30, "horse": 10, "house": 3}
    scores = {"held_out/sketch": {"class_accuracy": {"dog": 80.0, "horse": 55.0, "house": 35.0}}}
    run = make_run_at_rate(0.1, 60.0, data={"training_images": images}, metrics={"last round": scores})
    text = table_text(tables([run], [LAST])[0])
    assert list(text.frame)[3:7] == ["average of 1 of 4", "head", "medium", "tail"]
    assert text.frame.iloc[-1, 4:7].tolist() == ["80.0", "55.0", "35.0"]
    assert any(line.startswith("head, medium, tail: ") for line in text.lines)


def test_a_table_warns_of_results_no_better_than_chance():
    assert warnings(make_imbalanced_run(90.0, 80.0, 75.0)) == []
    chance = (
        "promptfl, last, held-out images: balanced accuracy, 51.0 % (95 %: 48.0 to 57.0), is indistinguishable from"
    )
    notes = warnings(make_imbalanced_run(71.0, 51.0, 48.0), make_imbalanced_run(90.0, 80.0, 75.0, seed=1))
    assert notes[1] == f"{chance} chance, 50.0 % (1 of 2 runs)"
    below = "zero-shot CLIP, held-out images: balanced accuracy, 40.0 % (95 %: 38.0 to 47.0), is below chance, 50.0 %"
    assert warnings(make_imbalanced_run(71.0, 40.0, 38.0))[0] == below
    unknown = make_run_at_rate(0.1, 50.0, balance={"zero-shot CLIP": {}, "last round": {}})
    reason = "balanced accuracy is not available, since a site's policy does not allow counts by class"
    assert warnings(unknown) == [f"{reason}: zero-shot CLIP; promptfl, last"]


def test_a_table_warns_of_methods_that_still_rise():
    rising = {"accuracy": {"last round (15)": {"held_out/sketch": 3.0}, "best on source validation (15)": {}}}
    runs = [make_run_at_rate(0.1, 50.0), make_run_at_rate(0.1, 50.0, method="TRIP", **rising)]
    assert warnings(*runs) == ["source validation was best in the last round, so more rounds may help: trip"]
    assert warnings(*runs, make_run_at_rate(0.1, 50.0, seed=1, method="TRIP")) == []  # one of two may be chance
