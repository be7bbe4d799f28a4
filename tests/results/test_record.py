import json
from dataclasses import replace

import pytest
import yaml

from fedvlp.commands.cli import main
from fedvlp.results import find_records, load_record, row_labels
from fedvlp.results.record import REQUIRED_KEYS
from fedvlp.utils.errors import UserError
from tests.helpers.images import DOMAINS
from tests.helpers.records import COMMUNICATION


def write_run(folder, seed=0, held_out="sketch", method="TRIP", data=None, row=None, **options):
    """Writes the summary of a run that never took place, with the files of one that ended."""
    folder.mkdir(parents=True)
    described = {
        "name": "Shapes",
        "images": "00ff",
        "kind": "leave-domains-out",
        "partition": "one client a domain",
        "split_rule": "stratified",
        "shots": None,
        "validation_fraction": 0.2,
        "test_fraction": 0.0,
        "split_seed": 0,
    }
    trained = {
        "validation/photo": 70.0,
        "validation": 70.0,
        f"held_out/{held_out}": 50.0 + seed,
        "held_out": 50.0 + seed,
    }
    rows = {"last round (3)": trained, "best on source validation (2)": trained | {"held_out": 40.0}}
    summary = {
        "model": {
            "class_path": f"fedvlp.methods.{method}",
            "init_args": {"class_names": ["a"], "domains": ["photo"], "clip": {"name": "tiny"}} | options,
            "clip_fingerprint": "abcd",
        },
        "optimizer": {"class": "SGD", "lr": 0.1},
        "protocol": f"held-out domain: {held_out}",
        "split": f"split {held_out}",
        "batch_size": 16,
        "training": {"seed": seed, "local_epochs": 1},
        "held_out": [held_out],
        "rounds": 3,
        "accuracy": rows if row is None else row,
        "communication_per_client_and_round": dict(COMMUNICATION),
        "seconds": 1.5,
        "versions": {"torch": "2"},
        "data": described | (data or {}),
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed_everything": seed}))
    return folder


def test_a_record_has_what_a_real_run_wrote(image_root, tmp_path):
    arguments = ["--config=methods/promptfl", "--config=data/folders", "--model.clip.name=fedvlp-tiny"]
    arguments += [f"--data.root={image_root}", "--data.shots=1", "--data.held_out=ink", "--data.cache_dir=null"]
    arguments += [f"--trainer.default_root_dir={tmp_path}", "--trainer.rounds=2", "--trainer.num_threads=1"]
    assert main(["fit", *arguments, "--seed_everything=3"]) == 0
    (record,), problems = find_records([tmp_path])
    assert problems == []
    assert (record.method, record.seed, record.rounds, record.held_out) == ("PromptFL", 3, 2, ("ink",))
    assert record.clip == "fedvlp-tiny"
    assert record.data["name"] == f"DomainFolders {image_root.name}"
    assert record.data["shots"] == 1
    assert set(record.data["domains"]) == set(DOMAINS)
    assert [row["round"] for row in record.history] == [1.0, 2.0]
    assert record.last["held_out"] == pytest.approx(record.history[-1]["held_out"])
    assert record.baseline["held_out"] >= 0
    assert record.config["data"]["init_args"]["shots"] == 1


def test_seed_and_held_out_domain_change_neither_table_nor_row(tmp_path):
    one = load_record(write_run(tmp_path / "1"))
    other = load_record(write_run(tmp_path / "2", seed=1, held_out="photo"))
    assert one.key == other.key
    assert one.settings == other.settings


@pytest.mark.parametrize(
    "change", [{"images": "ff"}, {"shots": 4}, {"partition": "20 clients"}, {"kind": "all domains seen"}]
)
def test_other_images_or_another_protocol_is_another_table(tmp_path, change):
    one = load_record(write_run(tmp_path / "1"))
    other = load_record(write_run(tmp_path / "2", data=change))
    assert one.key != other.key
    assert one.settings == other.settings


def test_an_option_is_another_row_of_the_same_table(tmp_path):
    one = load_record(write_run(tmp_path / "1", num_experts=4))
    other = load_record(write_run(tmp_path / "2", num_experts=2))
    assert one.key == other.key
    assert one.settings != other.settings


def test_rows_are_named_by_what_sets_them_apart(tmp_path):
    runs = [{"num_experts": 4}, {"num_experts": 4, "routing": "random"}, {"num_experts": 2, "routing": "token"}]
    runs = [{"routing": "token"} | run for run in runs] + [{"method": "PromptFL"}]
    records = [load_record(write_run(tmp_path / str(number), **run)) for number, run in enumerate(runs)]
    names = ["TRIP", "TRIP (routing=random)", "TRIP (num_experts=2)", "PromptFL"]
    assert [row_labels(records)[record.settings] for record in records] == names


def test_a_row_names_what_was_given_to_the_federation_for_it_alone(tmp_path):
    plain = load_record(write_run(tmp_path / "1"))
    rule = {"class": "FedGMA", "agreement": 0.4}
    masked = replace(plain, training={**plain.training, "aggregation": rule})
    held = replace(plain, training={**plain.training, "proximal_weight": 0.5})
    corrected = replace(plain, training={**plain.training, "local_rule": {"class": "Scaffold"}})
    labels = row_labels([plain, masked, held, corrected])
    assert labels[plain.settings] == plain.method
    assert labels[masked.settings] == f"{plain.method} (aggregation=FedGMA/0.4)"
    assert labels[held.settings] == f"{plain.method} (proximal_weight=0.5)"
    assert labels[corrected.settings] == f"{plain.method} (local_rule=Scaffold)"


def test_the_newest_of_equal_runs_counts(tmp_path):
    write_run(tmp_path / "run" / "2026-01-01", row={"last round (3)": {"held_out": 1.0}})
    write_run(tmp_path / "run" / "2026-01-02", row={"last round (3)": {"held_out": 2.0}})
    write_run(tmp_path / "run" / "2026-01-03", seed=1)
    records, problems = find_records([tmp_path, tmp_path / "run" / "2026-01-02"])
    assert [(record.seed, record.folder.name) for record in records] == [(0, "2026-01-02"), (1, "2026-01-03")]
    assert problems == []


def test_what_is_no_run_is_named_and_the_rest_is_read(tmp_path):
    write_run(tmp_path / "good")
    (tmp_path / "stopped").mkdir()
    (tmp_path / "stopped" / "config.yaml").write_text("trainer: {}")
    damaged = write_run(tmp_path / "damaged")
    (damaged / "summary.json").write_text('{"rounds": 3')
    records, problems = find_records([tmp_path, tmp_path / "nowhere"])
    assert [record.folder.name for record in records] == ["good"]
    for name in ("stopped", "damaged", "nowhere"):
        assert any(name in line for line in problems), name


def test_a_stopped_attempt_is_not_mentioned_if_a_later_one_ended(tmp_path):
    (tmp_path / "2026-01-01").mkdir()
    (tmp_path / "2026-01-01" / "config.yaml").write_text("trainer: {}")
    write_run(tmp_path / "2026-01-02")
    records, problems = find_records([tmp_path])
    assert len(records) == 1
    assert problems == []


def test_a_summary_of_something_else_is_an_error(tmp_path):
    (tmp_path / "summary.json").write_text('{"rounds": 3}')
    with pytest.raises(UserError, match="lacks model, protocol"):
        load_record(tmp_path)


@pytest.mark.parametrize("name", COMMUNICATION)
def test_a_summary_that_lacks_a_count_of_the_exchange_is_an_error(tmp_path, name):
    path = write_run(tmp_path / "run") / "summary.json"
    summary = json.loads(path.read_text())
    del summary["communication_per_client_and_round"][name]
    path.write_text(json.dumps(summary))
    with pytest.raises(UserError, match="Make the run again"):
        load_record(tmp_path / "run")


def test_a_summary_of_a_whole_clip_that_is_sent_is_read(tmp_path):
    path = write_run(tmp_path / "run") / "summary.json"
    summary = json.loads(path.read_text())
    sent = {name: 149_620_737 * (4 if name.endswith("bytes") else 1) for name in COMMUNICATION}
    path.write_text(json.dumps(summary | {"communication_per_client_and_round": sent}))
    assert load_record(tmp_path / "run").communication == sent


def test_the_only_row_of_a_method_that_trains_nothing_is_last_and_best(tmp_path):
    record = load_record(write_run(tmp_path / "run", row={"zero-shot CLIP": {"held_out": 33.0}}))
    assert record.last == record.best == record.baseline == {"held_out": 33.0}


@pytest.mark.parametrize("content", ["null", "{", json.dumps(dict.fromkeys(REQUIRED_KEYS))])
def test_a_summary_of_another_sort_is_one_error(tmp_path, content):
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(UserError, match=r"summary\.json"):
        load_record(tmp_path)


@pytest.mark.parametrize("rows", ["1,2,3", "1,many", "1,\0"])
def test_a_ragged_table_of_rounds_is_one_error(tmp_path, rows):
    record = load_record(write_run(tmp_path / "run"))
    (record.folder / "metrics.csv").write_text(f"round,loss\n{rows}\n")
    with pytest.raises(UserError, match=r"metrics\.csv is damaged"):
        record.history  # noqa: B018
