from dataclasses import replace

import pytest

from fedvlp.core.roles import CENTRALISED
from fedvlp.results.record import TABLE_KEYS
from fedvlp.tools.compare.grouping import (
    describe_differences,
    describe_records,
    group_records,
    method_configs,
    row_labels,
)
from tests.helpers.records import DATA, make_record

OTHER = {
    "name": "Icons",
    "images": "ffff",
    "classes": ["hound", "horse"],
    "kind": "all domains seen",
    "new_classes": ["cat", "owl"],
    "class_split": "client",
    "targets": [{"name": "Toys", "images": "00f0"}],
    "partition": "20 clients, IID within domains",
    "split_rule": "official",
    "shots": 16,
    "validation_fraction": 0.1,
    "test_fraction": 0.2,
    "split_seed": 1,
}


TITLES = {
    "name": "data",
    "kind": "protocol",
    "partition": "clients",
    "new_classes": "new classes",
    "class_split": "measured classes",
    "targets": "other data sets",
}
"""Descriptions of the keys that have a different name in tables."""


def differences(groups):
    return describe_differences([describe_records(group) for group in groups])


@pytest.mark.parametrize("name", TABLE_KEYS)
def test_runs_that_differ_in_their_data_are_not_mixed(name):
    runs = [make_record(seed=0), make_record(seed=1), make_record(seed=2, data={name: OTHER[name]})]
    groups = group_records(runs)
    assert [len(group) for group in groups] == [2, 1]
    line = differences(groups)
    assert line.startswith("2 tables")
    title = TITLES.get(name, name)
    title = "split" if name in ("split_rule", "split_seed", "validation_fraction", "test_fraction") else title
    assert f"differ in {title} (" in line
    assert line.count("|") == 1


@pytest.mark.parametrize("field", ["clip", "clip_fingerprint"])
def test_runs_of_different_clips_are_not_mixed(field):
    groups = group_records([make_record(), make_record(seed=1, **{field: "other"})])
    assert len(groups) == 2
    assert "differ in backbone (" in differences(groups)


@pytest.mark.parametrize(
    "other",
    [
        {"held_out": "photo"},
        {"method": "TRIP"},
        {"rounds": 9},
        {"options": {"prompt_length": 4}},
        {"split": "other"},
        {"seconds": 9.0},
        {"data": {"domains": DATA["domains"]}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_row_and_column_settings_do_not_split_tables(other):
    groups = group_records([make_record(), make_record(**other)])
    assert len(groups) == 1
    assert differences(groups) == ""


def test_more_held_out_domains_leave_fewer_to_train_on():
    groups = group_records([make_record(), make_record(held_out=("photo", "sketch"))])
    assert len(groups) == 2
    assert "1 held out | leave-domains-out, 2 held out" in differences(groups)


def test_runs_without_a_data_description_get_separate_tables():
    bare = [replace(make_record(), data={}, split=split) for split in ("a", "b")]
    groups = group_records([make_record(), *bare])
    assert len(groups) == 3
    assert describe_records(groups[1])["split"] == "a"


def test_centralised_runs_join_each_table_of_the_same_images():
    """The clients do not matter. They get a separate table only if no other run has these images."""
    one, other = make_record(), make_record(data={"partition": "20 clients"})
    pooled = make_record(method="SWAD", data={"partition": CENTRALISED})
    elsewhere = make_record(data={"partition": CENTRALISED, "shots": 4})
    for order in ([one, pooled, other, elsewhere], [pooled, one, other, elsewhere]):
        groups = {describe_records(group)["clients"]: group for group in group_records(order)}
        assert list(groups) == ["one client per domain", "20 clients", CENTRALISED]
        assert set(map(id, groups["20 clients"])) == {id(pooled), id(other)}
        assert set(map(id, groups["one client per domain"])) == {id(pooled), id(one)}
        assert groups[CENTRALISED] == (elsewhere,)


def labels(*records):
    names = row_labels(records)
    return [names[record.settings] for record in records]


def make_run(config, key_seed=0, **other):
    """Make a run of a bundled config of TRIP or PromptFL."""
    method = method_configs()[config]["model"]["class_path"]
    options = {"prompt_length": 16, "key_seed": key_seed}
    return make_record(method=method, options=options, configs=[f"methods/{config}", "data/folders"], **other)


@pytest.mark.parametrize(
    ("method", "configs", "label"),
    [
        ("TRIP", ["methods/trip_lite", "data/folders", "mine"], "trip_lite"),
        ("TRIP", ["methods/promptfl", "methods/trip", "centralised"], "trip"),
        ("TRIP", ["mine", "images"], "mine"),
        ("PromptFL", ["methods/trip"], "PromptFL"),  # the command line chose another method
        ("PromptFL", [], "PromptFL"),
    ],
)
def test_a_row_has_the_name_of_its_config(method, configs, label):
    assert labels(make_record(method=method, configs=configs)) == [label]


def test_labels_contain_options_if_configs_are_equal():
    changed = make_run("trip", key_seed=1)
    assert labels(make_run("trip"), changed, make_run("trip_lite", rounds=9)) == [
        "trip (key_seed=0)",
        "trip (key_seed=1)",
        "trip_lite",
    ]
    assert labels(make_run("trip"), make_run("trip", rounds=9), changed)[1:] == ["trip (rounds=9)", "trip (key_seed=1)"]
    usual = {"seed": 0, "epochs": 1, "batch_size": 16}
    rule = usual | {"aggregation": {"class": "FedGMA", "agreement": 0.4}}
    add_ons = usual | {"add_ons": [{"class": "FedProx", "weight": 0.5}, {"class": "Scaffold"}]}
    assert labels(make_run("trip"), make_run("trip", training=rule), make_run("trip", training=add_ons)) == [
        "trip",
        "trip (aggregation=FedGMA/0.4)",
        "trip (add_ons=FedProx/0.5+Scaffold)",
    ]
    pooled = {"partition": CENTRALISED}
    assert labels(make_run("promptfl", data=pooled), make_run("promptfl")) == [f"promptfl ({CENTRALISED})", "promptfl"]
