"""Records of finished runs, how they are found, and their DataFrame."""

import json
from dataclasses import replace

import pytest

import fedvlp
from fedvlp.results import find_records, load_record
from fedvlp.results.record import COLUMNS, runs_frame
from fedvlp.tools.compare.tables import LAST as LAST_ROUND
from fedvlp.tools.compare.tables import tables
from fedvlp.utils.errors import UserError
from tests.helpers.records import COMMUNICATION, make_record
from tests.helpers.report_runs import DOMAINS as MADE
from tests.helpers.report_runs import write_run as write_made_run

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
    "training": {"class": "RunOptions", "seed": 6, "local": {"epochs": 2, "steps": None}, "batch_size": 17},
    "data": {"name": "Shapes", "shots": 8},
    "held_out": ["sketch", "ink"],
    "rounds": 5,
    "accuracy": {"zero-shot CLIP": ZERO, "last round (5)": LAST, "best on source validation (3)": BEST},
    "communication_per_client_and_round": dict(COMMUNICATION),
    "seconds": 7.25,
    "versions": {"torch": "2.9"},
}


def write(folder, summary):
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_run(folder, **changes):
    """Write the files of an imaginary finished run."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("trainer: {}")
    return write(folder, SUMMARY | changes)


def test_the_newest_of_equal_runs_counts(tmp_path):
    (tmp_path / "run" / "2025-12-31").mkdir(parents=True)  # a stopped attempt is not mentioned if a later one ended
    (tmp_path / "run" / "2025-12-31" / "config.yaml").write_text("trainer: {}")
    write_run(tmp_path / "run" / "2026-01-01", accuracy={"last round (3)": {"held_out": 1.0}})
    write_run(tmp_path / "run" / "2026-01-02", accuracy={"last round (3)": {"held_out": 2.0}})
    write_run(tmp_path / "run" / "2026-01-03", training={**SUMMARY["training"], "seed": 1})
    records, problems = find_records([tmp_path, tmp_path / "run" / "2026-01-02"])
    assert [(record.seed, record.folder.name) for record in records] == [(6, "2026-01-02"), (1, "2026-01-03")]
    assert problems == []


def test_invalid_runs_are_named_and_the_others_read(tmp_path):
    write_run(tmp_path / "good")
    (tmp_path / "stopped").mkdir()
    (tmp_path / "stopped" / "config.yaml").write_text("trainer: {}")
    for name, content in (("damaged", '{"rounds": 3'), ("list", "[1, 2]"), ("null", "null")):
        (write_run(tmp_path / name) / "summary.json").write_text(content)
    records, problems = find_records([tmp_path, tmp_path / "nowhere"])
    assert [record.folder.name for record in records] == ["good"]
    for name in ("stopped", "damaged", "list", "null", "nowhere"):
        assert any(name in line for line in problems), name


@pytest.fixture
def record(tmp_path):
    return load_record(write(tmp_path, SUMMARY))


def test_every_field_is_read(record, tmp_path):
    assert record.folder == tmp_path
    assert (record.method, record.clip, record.clip_fingerprint) == ("Method", "tiny", "0f0f")
    assert record.options == {"prompt_length": 12, "kl_weight": 0.5}
    assert record.optimizer == {"class": "SGD", "lr": 0.1}
    assert record.training == {"seed": 6, "epochs": 2, "batch_size": 17}
    assert record.training_without_seed == {"epochs": 2, "batch_size": 17}
    assert (record.seed, record.rounds, record.seconds) == (6, 5, 7.25)
    assert (record.split, record.protocol, record.held_out) == ("abcd", "held-out domain: sketch", ("sketch", "ink"))
    assert (record.last, record.best, record.baseline) == (LAST, BEST, ZERO)
    assert record.data == {"name": "Shapes", "shots": 8}
    assert record.communication == COMMUNICATION
    assert record.versions == {"torch": "2.9"}
    assert (record.history, record.config) == ([], {})


@pytest.mark.parametrize("name", ["model", "accuracy"])
def test_a_summary_that_lacks_a_value_is_one_error(tmp_path, name):
    write(tmp_path, {key: other for key, other in SUMMARY.items() if key != name})
    with pytest.raises(UserError, match=rf"summary\.json is not the summary of a run: KeyError '{name}'\. Repeat"):
        load_record(tmp_path)


@pytest.mark.parametrize("change", [{"split": "dcba"}, {"protocol": "all domains seen"}])
def test_protocol_and_split_matter_only_without_a_data_description(tmp_path, record, change):
    assert load_record(write(tmp_path, SUMMARY | change)).key == record.key
    without = [load_record(write(tmp_path, SUMMARY | each | {"data": {}})).key for each in ({}, change)]
    assert without[0] != without[1]


def test_rounds_are_read_without_empty_cells(record):
    (record.folder / "metrics.csv").write_text("round,validation,loss\n1,,0.5\n2,61.5,\n")
    assert record.history == [{"round": 1.0, "loss": 0.5}, {"round": 2.0, "validation": 61.5}]


def test_a_pivot_of_the_frame_is_the_table(tmp_path):
    for method, value in (("TRIP", 60.0), ("PLAN", 50.0)):
        for seed in (0, 1):
            for index, domain in enumerate(MADE):
                write_made_run(tmp_path, [10.0, value + index + seed], domain, seed, method)
    runs = fedvlp.load_runs(tmp_path)
    assert list(runs) == list(COLUMNS)
    assert runs["comparison"].nunique() == 1
    last = runs[(runs["row"] == "last round") & (runs["role"] == "held_out") & (runs["domain"] != "")]
    pivot = last.pivot_table(index="method", columns="domain", values="accuracy")
    (table,) = tables(fedvlp.results.find_records([tmp_path])[0])
    for method in ("TRIP", "PLAN"):
        for domain in MADE:
            assert pivot.loc[method, domain] == pytest.approx(table.cell((method.lower(), LAST_ROUND), domain).mean)


def test_a_long_tail_has_accuracies_of_head_medium_and_tail_classes():
    """Images decide between classes, not their order; the mean over domains weights domains equally."""
    images = {"owl": 5, "dog": 90, "cat": 31, "eel": 2, "asp": 30, "bee": 12, "fox": 3}
    by_domain = {
        "ink": {"owl": 10.0, "dog": 70.0, "cat": 50.0, "eel": 0.0, "asp": 25.0, "bee": 35.0, "fox": 80.0},
        "oil": {"dog": 100.0, "bee": 5.0},  # the domain has no images of the other classes
    }
    scores = {f"held_out/{domain}": {"class_accuracy": accuracies} for domain, accuracies in by_domain.items()}
    row = {"held_out/ink": 45.0, "held_out/oil": 60.0, "held_out": 52.5}
    record = make_record(accuracy={"last round (3)": row}, metrics={"last round": scores})
    assert runs_frame([record])["head_accuracy"].isna().all()
    record = replace(record, data={**record.data, "training_images": images})
    frame = runs_frame([record]).set_index("domain")[["head_accuracy", "medium_accuracy", "tail_accuracy"]]
    assert frame.loc["ink"].tolist() == [60.0, 30.0, 30.0]  # dog, cat; asp, bee; owl, fox, eel
    assert frame.loc["oil"].fillna(-1.0).tolist() == [100.0, 5.0, -1.0]
    assert frame.loc[""].tolist() == [80.0, 17.5, 30.0]


def test_rows_describe_their_run():
    metrics = {"last round": {"held_out": {"macro_f1": 33.0, "worst_domain": {"name": "x", "accuracy": 9.0}}}}
    scores = {"held_out/sketch": 50.0, "held_out": 50.0}
    runs = runs_frame([make_record(seed=4, metrics=metrics, accuracy={"last round (3)": scores})])
    mean = runs[runs["domain"] == ""].iloc[0]
    assert (mean["row"], mean["role"], mean["accuracy"]) == ("last round", "held_out", 50.0)
    assert (mean["macro_f1"], mean["worst_domain"]) == (33.0, 9.0)
    assert (mean["data"], mean["held_out"], mean["seed"], mean["shots"]) == ("PACS", "sketch", 4, "all")
    assert mean["bytes"] == 2 * mean["upload_bytes"] == 65536
    assert runs["macro_f1"].isna().sum() == 1


def test_unreadable_runs_cause_a_warning(tmp_path):
    with pytest.raises(UserError, match="There is no finished run to load"):
        fedvlp.load_runs(tmp_path)
    folder = write_made_run(tmp_path, [50.0])
    (write_made_run(tmp_path, [50.0], seed=1) / "summary.json").write_text(json.dumps({"rounds": 3}))
    with pytest.warns(UserWarning, match="is not the summary of a run"):
        runs = fedvlp.load_runs([tmp_path])
    assert set(runs["run"]) == {str(folder)}
