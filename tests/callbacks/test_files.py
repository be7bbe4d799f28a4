"""``metrics.csv`` is complete and the summary scores predictions, also in a resumed run."""

import csv
import json

import pandas as pd
import pytest

from fedvlp.core.metrics import all_scores
from fedvlp.results import load_record
from tests.helpers.toy_federation import Linear, Points, federation, file_callbacks


def table(run):
    return list(csv.DictReader((run.folder / "metrics.csv").read_text(encoding="utf-8").splitlines()))


def test_late_columns_are_in_every_row(tmp_path):
    options = {"evaluate_every": 2, "name": "run", **file_callbacks()}
    federation(tmp_path, rounds=3, **options).fit(Linear(), Points())
    run = federation(tmp_path, rounds=5, **options)
    run.fit(Linear(), Points(), ckpt_path="last")
    rows = table(run)
    assert [row["round"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [bool(row["validation"]) for row in rows] == [False, True, True, True, True]
    for row, expected in zip(rows, run.run_state.history, strict=True):
        assert {name: float(value) for name, value in row.items() if value} == expected


def test_predictions_match_accuracies_and_the_summary_scores_them(build, image_root):
    others = f"--data.out_of_distribution={image_root / 'ink' / 'star'}"
    options = ("--trainer.rounds=1", "--trainer.local.steps=1", "--data.test_fraction=0.3", others)
    parts = build("promptfl", *options)
    parts.trainer.fit(parts.model, parts.datamodule)
    record = load_record(parts.trainer.folder)
    confusion = pd.read_csv(record.folder / "confusion.csv")
    for row, accuracies in (("zero-shot CLIP", record.baseline), ("last round", record.last)):
        by_split = record.predictions[row]
        inside = {name for name in accuracies if name.startswith(("test/", "held_out/"))}
        assert by_split.keys() == inside | {"out_of_distribution/star"}
        for name in inside:
            predictions = by_split[name]
            assert predictions.accuracy == accuracies[name]
            split_rows = confusion[(confusion["row"] == row) & (confusion["split"] == name)]
            right = split_rows[split_rows["true"] == split_rows["predicted"]]["images"].sum()
            assert 100 * right / split_rows["images"].sum() == pytest.approx(accuracies[name])
        assert record.metrics[row] == all_scores(by_split, parts.datamodule.class_names)
        assert record.metrics[row]["test"]["accuracy"] == accuracies["test"]
        assert record.metrics[row]["held_out"]["out_of_distribution"].keys() == {"star"}
    files = {
        name: (record.folder / name).read_bytes()
        for name in ("predictions.safetensors", "confusion.csv", "summary.json")
    }
    again = build("promptfl", *options)
    again.trainer.fit(again.model, again.datamodule, ckpt_path=str(record.folder))
    assert (again.trainer.folder / "predictions.safetensors").read_bytes() == files["predictions.safetensors"]
    assert (again.trainer.folder / "confusion.csv").read_bytes() == files["confusion.csv"]
    summary = json.loads((again.trainer.folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["metrics"] == json.loads(files["summary.json"])["metrics"]
