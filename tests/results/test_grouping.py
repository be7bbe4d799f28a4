import pytest

from fedvlp.results.grouping import group_records, told_apart
from fedvlp.results.record import TABLE
from tests.helpers.records import DATA, made

OTHER = {
    "name": "Icons",
    "images": "ffff",
    "classes": ["hound", "horse"],
    "kind": "all domains seen",
    "partition": "20 clients, IID within domains",
    "split_rule": "official",
    "shots": 16,
    "validation_fraction": 0.1,
    "test_fraction": 0.2,
    "split_seed": 1,
}


def test_every_part_of_a_table_is_tried():
    assert set(OTHER) == set(TABLE)


@pytest.mark.parametrize("name", OTHER)
def test_runs_that_differ_in_their_data_are_not_mixed(name):
    runs = [made(seed=0), made(seed=1), made(seed=2, data={name: OTHER[name]})]
    groups = group_records(runs)
    assert [len(group.records) for group in groups] == [2, 1]
    told = told_apart(groups)
    assert told.startswith("2 tables")
    title = {"name": "data", "kind": "protocol", "partition": "clients"}.get(name, name)
    title = "split" if name in ("split_rule", "split_seed", "validation_fraction", "test_fraction") else title
    assert f"differ in {title} (" in told
    assert told.count("|") == 1


@pytest.mark.parametrize("field", ["clip", "clip_fingerprint"])
def test_runs_of_different_clips_are_not_mixed(field):
    groups = group_records([made(), made(seed=1, **{field: "other"})])
    assert len(groups) == 2
    assert "differ in backbone (" in told_apart(groups)


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
def test_what_makes_a_row_or_a_column_makes_no_table(other):
    groups = group_records([made(), made(**other)])
    assert len(groups) == 1
    assert told_apart(groups) == ""


def test_more_held_out_domains_leave_fewer_to_train_on():
    groups = group_records([made(), made(held_out=("photo", "sketch"))])
    assert len(groups) == 2
    assert "1 held out | leave-domains-out, 2 held out" in told_apart(groups)


def test_runs_that_do_not_describe_their_data_stand_alone():
    bare = [made(data={}).__class__(**vars(made()) | {"data": {}, "split": split}) for split in ("a", "b")]
    groups = group_records([made(), *bare])
    assert len(groups) == 3
    assert groups[1].about["split"] == "a"
