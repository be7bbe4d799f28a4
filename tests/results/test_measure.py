"""Tables of protocols that are compared by something else than one accuracy a domain."""

from __future__ import annotations

import pytest

from fedvlp.core.roles import COMPUTED, ROLES
from fedvlp.results.accuracy_table import ORDER, accuracy_columns, column_title, format_accuracies
from fedvlp.results.printing import finding, format_tables, table_text, tidy
from fedvlp.results.tables import AVERAGE, LAST, ranking, tables
from fedvlp.tools.report.page import report_page
from tests.helpers.records import make_record

BASE_TO_NEW = {"kind": "base-to-new", "new_classes": ["cow", "hen"]}
PERSONAL = {"kind": "personal"}
CROSS = {"kind": "cross-dataset", "targets": [{"name": "Toys", "images": "0f"}, {"name": "Icons", "images": "1e"}]}


def run(method, seed, data, row):
    """A finished run whose last round was also the best."""
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
    assert table.columns == ("base classes", "new classes")
    wide, narrow, _ = ranking(table).index
    assert (wide, narrow) == (("Wide", LAST), ("Narrow", LAST))
    assert table.cell(wide, AVERAGE).mean == pytest.approx((60 + 48) / 2)  # not of the mean classes, 50 and 60
    assert table.cell(narrow, AVERAGE).mean == pytest.approx(45.0)
    assert [table.cell(wide, name).mean for name in table.columns] == [50.0, 60.0]
    text = table_text(table)
    assert list(text.frame)[2:5] == ["base classes", "new classes", "harmonic mean"]
    assert "spread" not in text.frame
    assert "Wide has the highest result, 54.0 ± 8.5 % harmonic mean of the accuracies on base and" in finding(table)
    assert "new classes: 2, names" in format_tables([text], "table")


def test_clients_own_classes_have_a_column_where_they_were_measured():
    local = base_to_new("TRIP", 0, 80.0, 60.0)
    row = {**local.accuracy["last round (3)"], "local": 90.0, "local/a": 90.0, "test_harmonic": 74.5}
    (table,) = tables([run("TRIP", 0, {**BASE_TO_NEW, "class_split": "client"}, row)])
    assert table.columns == ("own classes", "base classes", "new classes")


def test_personal_has_the_worst_client_and_the_global_model_beside_the_mean():
    (table,) = tables([personal("FedOTP", 0, (90.0, 60.0), (50.0, 70.0))])
    assert table.columns == ("worst client", "spread of clients", "global model", "its worst client")
    row = ("FedOTP", LAST)
    assert [table.cell(row, name).mean for name in (*table.columns, AVERAGE)] == [60.0, 15.0, 60.0, 50.0, 75.0]
    assert "75.0 % mean accuracy of the clients' own models on their own test images" in finding(table)
    cells = tidy(table, 1)
    assert cells[(cells["method"] == "FedOTP") & (cells["column"] == "mean of clients")]["mean"].tolist() == [75.0]


def test_other_data_sets_are_columns():
    row = {"transfer/Toys": 40.0, "transfer/Icons": 60.0, "transfer": 50.0}
    (table,) = tables([run("PromptFL", 0, CROSS, row)])
    assert (table.columns, table.average_title) == (("Icons", "Toys"), "average")
    (partial,) = tables([run("PromptFL", 0, CROSS, {"transfer/Toys": 40.0, "transfer": 40.0})])
    assert partial.average_title == "average of 1 of 2"


def test_new_classes_of_each_held_out_domain_fill_a_row():
    data = {"kind": "new-classes-and-domains", "new_classes": ["cow"]}
    runs = []
    for domain, new in (("photo", 50.0), ("sketch", 30.0)):
        accuracy = {"last round (3)": {"validation": 1.0, f"held_out/{domain}": 90.0, f"held_out_new/{domain}": new}}
        runs.append(make_record(held_out=domain, data=data, accuracy=accuracy, baseline=None))
    (table,) = tables(runs)
    assert table.columns == ("photo", "sketch")
    assert table.cell(("PromptFL", LAST), "sketch").mean == 30.0


def test_protocols_are_never_in_one_table():
    runs = [
        base_to_new("PromptFL", 0, 50.0, 50.0),
        personal("PromptFL", 0, (50.0, 50.0), (50.0, 50.0)),
        run("PromptFL", 0, CROSS, {"transfer/Toys": 5.0}),
        run("PromptFL", 0, {"kind": "all domains seen"}, {"test/ink": 5.0}),
        make_record(),
    ]
    assert len(tables(runs)) == len(runs)


def test_the_table_of_a_run_has_means_alone_of_what_is_measured_by_client():
    record = personal("FedOTP", 0, (90.0, 60.0), (50.0, 70.0))
    rows = list(record.accuracy.items())
    assert accuracy_columns(rows) == [
        "validation",
        "personal",
        "personal_worst",
        "personal_spread",
        "global",
        "global_worst",
        "global_spread",
    ]
    assert "own model mean  worst own model" in format_accuracies(rows)
    assert column_title("test_new/ink") == "ink+n"
    assert set(ORDER) == {*ROLES, *COMPUTED}


@pytest.mark.parametrize(
    "runs",
    [
        [base_to_new("TRIP", seed, 50.0 + seed, 40.0) for seed in range(3)],
        [personal("TRIP", seed, (50.0 + seed, 40.0), (30.0, 20.0)) for seed in range(3)],
        [run("TRIP", 0, CROSS, {"transfer/Toys": 5.0, "transfer/Icons": 6.0, "transfer": 5.5})],
    ],
    ids=["base-to-new", "personal", "cross-dataset"],
)
def test_a_report_shows_them(runs, tmp_path):
    from datetime import date

    page = report_page(runs, [], "Protocols", date(2026, 1, 1))
    for title in tables(runs)[0].columns:
        assert title in page
