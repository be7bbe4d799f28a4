"""``metrics.csv`` is complete and the summary scores predictions, also in a resumed run."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedvlp.core.metrics import all_scores
from fedvlp.core.predictions import TWO_CLASSES, interval, resample, youden_threshold
from fedvlp.results import load_record
from fedvlp.testing.runs import CLASSES, DOMAINS, draw
from fedvlp.tools.compare.command import run_compare
from fedvlp.utils.errors import UserError
from tests.helpers.runs import make_run
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


@pytest.fixture
def imbalanced(tmp_path):
    """Write three domains with 9 images of one class and 3 of another."""
    for domain, domain_name in enumerate(DOMAINS):
        for label, count in enumerate((9, 3)):
            folder = tmp_path / "images" / domain_name / CLASSES[label]
            folder.mkdir(parents=True)
            for index in range(count):
                draw(domain, label, index).save(folder / f"{index}.png")
    return tmp_path / "images"


def test_predictions_match_accuracies_and_the_summary_scores_them(imbalanced, tmp_path, capsys):
    others = f"--data.out_of_distribution={imbalanced / 'ink' / 'square'}"
    options = ("--trainer.rounds=1", "--model.optimizer.lr=30", "--data.test_fraction=0.3", others)
    parts = make_run(imbalanced, tmp_path, "promptfl", *options)
    parts.trainer.fit(parts.model, parts.datamodule)
    printed = capsys.readouterr().out
    assert "held-out mean*  balanced*  largest class*" in printed
    assert "largest class: accuracy of always predicting that class" in printed
    record = load_record(parts.trainer.folder)
    confusion = pd.read_csv(record.folder / "confusion.csv")
    for row, accuracies in (("zero-shot CLIP", record.baseline), ("last round", record.last)):
        by_split = record.predictions[row]
        inside = {name for name in accuracies if name.startswith(("test/", "held_out/"))}
        assert by_split.keys() == inside | {"out_of_distribution/square"}
        for name in inside:
            predictions = by_split[name]
            assert predictions.accuracy == accuracies[name]
            split_rows = confusion[(confusion["row"] == row) & (confusion["split"] == name)]
            right = split_rows[split_rows["true"] == split_rows["predicted"]]["images"].sum()
            assert 100 * right / split_rows["images"].sum() == pytest.approx(accuracies[name])
        assert record.metrics[row] == all_scores(by_split, parts.datamodule.class_names)
        assert record.metrics[row]["test"]["accuracy"] == accuracies["test"]
        assert record.metrics[row]["held_out"]["out_of_distribution"].keys() == {"square"}
    balance = record.balance
    assert list(balance) == ["zero-shot CLIP", "class means", "last round", "best on source validation"]
    assert balance["last round"]["held_out/photo"]["largest_class"] == 75.0
    assert balance["last round"].keys() >= {"validation/ink", "validation", "held_out"}
    assert balance["last round"] != balance["zero-shot CLIP"]
    balanced = record.metrics["last round"]["held_out"]["balanced_accuracy"]
    assert balance["last round"]["held_out"]["balanced_accuracy"] == pytest.approx(balanced)
    # Neither the best round nor the last round of a finished run is evaluated again.
    files = {name: (record.folder / name).read_bytes() for name in ("predictions.safetensors", "confusion.csv")}
    again = make_run(imbalanced, tmp_path, "promptfl", *options)
    again.trainer.fit(again.model, again.datamodule, ckpt_path=str(record.folder))
    assert {name: (again.trainer.folder / name).read_bytes() for name in files} == files
    summary = load_record(again.trainer.folder)
    assert (summary.metrics, summary.balance) == (record.metrics, record.balance)


def test_intervals_are_over_groups_if_images_have_groups(imbalanced, tmp_path, capsys):
    options = ("--trainer.rounds=1", "--data.group=(.*)[01].png")  # two images of each class and domain
    run = make_run(imbalanced, tmp_path, "promptfl", *options)
    run.trainer.fit(run.model, run.datamodule)
    record = load_record(run.trainer.folder)
    for predictions in (record.predictions["last round"], run.trainer.predictions):
        groups = predictions["held_out/photo"].groups
        names = run.datamodule.groups["photo"]
        assert np.array_equal(
            groups[:, None] == groups, (names[:, None] == names) & (names != "") | np.eye(12, dtype=bool)
        )
    measured = record.metrics["last round"]["held_out/photo"]
    assert (measured["images"], measured["groups"]) == (12, 10)
    capsys.readouterr()
    run.trainer.test(run.model, run.datamodule, ckpt_path=str(record.folder))
    assert "in % [95 % over groups]" in capsys.readouterr().out
    assert run_compare([str(record.folder), "--intervals"]) == 0
    printed = capsys.readouterr().out
    assert "95 % bootstrap interval over groups, each drawn" in printed
    low, high = interval(resample(record.predictions["last round"]["held_out/photo"], 2, "held_out/photo")["accuracy"])
    assert f"[{low:.1f}, {high:.1f}]" in printed


def test_two_classes_have_scores_at_the_threshold_of_source_validation(imbalanced, tmp_path, capsys):
    options = ("--trainer.rounds=1", "--data.validation_fraction=0.4", "--data.positive_class=circle")
    run = make_run(imbalanced, tmp_path, "promptfl", *options)
    run.trainer.fit(run.model, run.datamodule)
    record = load_record(run.trainer.folder)
    measured = record.metrics["last round"]["held_out"]
    by_split = run.trainer.predictions
    validation = [replace(by_split[f"validation/{name}"], positive=0) for name in DOMAINS[:2]]
    assert measured["threshold"] == 100 * youden_threshold(validation)
    assert measured["positive_class"] == "circle"
    assert measured["intervals"].keys() > set(TWO_CLASSES.values())
    capsys.readouterr()
    run.trainer.test(run.model, run.datamodule, ckpt_path=str(record.folder))
    head, _, row, legend = capsys.readouterr().out.splitlines()[-4:]
    assert re.split(" {2,}", head)[1:] == ["AUROC", "AP", "sensitivity", "specificity", "threshold", "positive class"]
    cells = re.split(" {2,}", row)
    low, high = measured["intervals"]["class_auroc"]
    assert cells[:2] == ["held_out", f"{measured['class_auroc']:.1f} [{low:.1f}, {high:.1f}]"]
    assert cells[-2:] == [f"{measured['threshold']:.1f}", "'circle'"]
    assert "source validation" in legend
    assert run_compare([str(record.folder), "--row=last"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (titles,) = [line.split() for line in lines if line.startswith("method")]
    (values,) = [line.split() for line in lines if re.match(r"\w+ {2,}last {2,}", line)]
    assert "positive class: 'circle'" in " ".join(lines)
    found = dict(zip(reversed(titles), reversed(values), strict=False))
    assert {title: found[title] for title in TWO_CLASSES} == {
        title: f"{measured[name]:.1f}" for title, name in TWO_CLASSES.items()
    }
    table = tmp_path / "photo.csv"
    run.trainer.predict(run.model, str(imbalanced / "photo"), ckpt_path=str(record.folder), output=str(table))
    assert "'circle'" in capsys.readouterr().out
    again = json.loads(table.with_name("photo_scores.json").read_text(encoding="utf-8"))["metrics"]["labelled"]
    for name in ("sensitivity", "specificity", "threshold", "positive_class"):
        assert again[name] == measured[name]
    wrong = make_run(imbalanced, tmp_path, "promptfl", "--data.positive_class=star")
    with pytest.raises(UserError, match="positive_class to name one of two classes; got 'star' for circle, square"):
        wrong.trainer.fit(wrong.model, wrong.datamodule)
