"""Each field of a record comes from its own place in the summary; no two values are alike."""

from __future__ import annotations

import json

import pytest

from fedvlp.results import load_record
from fedvlp.results.record import REQUIRED_KEYS
from fedvlp.utils.errors import UserError
from tests.helpers.records import COMMUNICATION

LAST = {"validation/photo": 61.5, "validation": 61.5, "held_out/sketch": 40.25}
BEST = {"validation/photo": 63.0, "validation": 63.0, "held_out/sketch": 39.5}
ZERO = {"validation/photo": 50.0, "validation": 50.0, "held_out/sketch": 33.0}
SUMMARY = {
    "model": {
        "class_path": "some.package.Method",
        "init_args": {
            "class_names": ["owl", "dog"],
            "clip": {"name": "tiny", "pretrained": "auto"},
            "domains": ["photo"],
            "num_clients": 4,
            "rounds": 9,
            "prompt_length": 12,
            "kl_weight": 0.5,
        },
        "clip_fingerprint": "0f0f",
    },
    "optimizer": {"class": "SGD", "lr": 0.1},
    "protocol": "held-out domain: sketch",
    "split": "abcd",
    "batch_size": 17,
    "training": {"seed": 6, "local_epochs": 2},
    "data": {"name": "Shapes", "shots": 8},
    "held_out": ["sketch", "ink"],
    "rounds": 5,
    "accuracy": {"zero-shot CLIP": ZERO, "last round (5)": LAST, "best on source validation (3)": BEST},
    "communication_per_client_and_round": dict(COMMUNICATION),
    "seconds": 7.25,
    "features": {"saved_seconds": 1.75},
    "versions": {"torch": "2.9"},
}


def write(folder, summary):
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def record(tmp_path):
    return load_record(write(tmp_path, SUMMARY))


def test_every_field_has_its_place(record, tmp_path):
    assert record.folder == tmp_path
    assert (record.method, record.clip, record.clip_fingerprint) == ("Method", "tiny", "0f0f")
    assert record.options == {"prompt_length": 12, "kl_weight": 0.5}
    assert record.optimizer == {"class": "SGD", "lr": 0.1}
    assert record.training == {"seed": 6, "local_epochs": 2, "batch_size": 17}
    assert record.training_without_seed == {"local_epochs": 2, "batch_size": 17}
    assert (record.seed, record.rounds, record.seconds) == (6, 5, 7.25)
    assert (record.split, record.protocol, record.held_out) == ("abcd", "held-out domain: sketch", ("sketch", "ink"))
    assert (record.last, record.best, record.baseline) == (LAST, BEST, ZERO)
    assert record.data == {"name": "Shapes", "shots": 8}
    assert record.communication == COMMUNICATION
    assert record.features == {"saved_seconds": 1.75}
    assert record.versions == {"torch": "2.9"}
    assert (record.history, record.config) == ([], {})


def test_what_an_older_run_did_not_write_is_empty(tmp_path):
    record = load_record(write(tmp_path, {name: SUMMARY[name] for name in REQUIRED_KEYS}))
    assert (record.optimizer, record.seconds) == (None, 0.0)
    assert record.data == record.communication == record.features == {}
    assert record.training["batch_size"] is None


@pytest.mark.parametrize("name", REQUIRED_KEYS)
def test_a_summary_that_lacks_something_says_what(tmp_path, name):
    write(tmp_path, {key: value for key, value in SUMMARY.items() if key != name})
    with pytest.raises(UserError, match=f"it lacks {name}"):
        load_record(tmp_path)


def test_required_are_those_without_which_there_is_no_record():
    optional = {"optimizer", "batch_size", "data", "communication_per_client_and_round", "seconds", "features"}
    assert set(REQUIRED_KEYS) == SUMMARY.keys() - optional


def test_rows_are_found_by_the_beginning_of_their_title(tmp_path):
    rows = {"last round (5)": LAST, "best on source validation (3)": BEST}
    record = load_record(write(tmp_path, SUMMARY | {"accuracy": rows}))
    assert (record.last, record.best, record.baseline) == (LAST, BEST, {})
    record = load_record(write(tmp_path, SUMMARY | {"accuracy": {"zero-shot CLIP": ZERO, "last round (5)": LAST}}))
    assert (record.last, record.best) == (LAST, {})


@pytest.mark.parametrize("clip", ["ViT-B-16", {"name": "ViT-B-16"}])
def test_a_clip_is_named_alone_or_among_its_options(tmp_path, clip):
    model = SUMMARY["model"] | {"init_args": {"clip": clip}}
    assert load_record(write(tmp_path, SUMMARY | {"model": model})).clip == "ViT-B-16"


def test_the_order_of_keys_makes_no_other_row_or_table(tmp_path, record):
    reverse = json.loads(json.dumps(SUMMARY), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    other = load_record(write(tmp_path, reverse))
    assert (record.settings, record.key) == (other.settings, other.key)


@pytest.mark.parametrize("change", [{"split": "dcba"}, {"protocol": "all domains seen"}])
def test_only_runs_that_describe_no_data_are_told_apart_by_protocol_and_split(tmp_path, record, change):
    assert load_record(write(tmp_path, SUMMARY | change)).key == record.key
    without = [load_record(write(tmp_path, SUMMARY | each | {"data": {}})).key for each in ({}, change)]
    assert without[0] != without[1]


def test_rounds_are_read_without_what_was_not_measured(record):
    (record.folder / "metrics.csv").write_text("round,validation,loss\n1,,0.5\n2,61.5,\n")
    assert record.history == [{"round": 1.0, "loss": 0.5}, {"round": 2.0, "validation": 61.5}]


def test_the_config_is_read(record):
    (record.folder / "config.yaml").write_text("seed_everything: 6\n")
    assert record.config == {"seed_everything": 6}


def test_an_empty_config_is_none(record):
    (record.folder / "config.yaml").write_text("")
    assert record.config == {}


def test_a_run_that_has_not_ended_and_a_folder_that_is_none_are_told_apart(tmp_path):
    with pytest.raises(UserError, match="is no run"):
        load_record(tmp_path)
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UserError, match="has not ended"):
        load_record(str(tmp_path))
