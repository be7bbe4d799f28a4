"""Images with several labels, from the command to the scores, in few steps with the tiny CLIP."""

import json

import numpy as np
import pytest

from fedvlp import Federation, IconScenes, PromptFL
from fedvlp.commands.lightning_cli import run_federation
from fedvlp.results.predictions import read_predictions
from fedvlp.utils.errors import UserError

SHORT = [
    "--data.cache_dir=null",
    "--data.num_classes=6",
    "--trainer.rounds=1",
    "--trainer.local.steps=1",
    "--trainer.accelerator=cpu",
]


def fit(folder, *words):
    """Train on scenes of six classes with the tiny CLIP."""
    start = ["fit", "--config=data/icon_scenes", "--model.clip=fedvlp-tiny", f"--trainer.default_root_dir={folder}"]
    run_federation([*start, *SHORT, *words])
    (summary,) = folder.rglob("summary.json")
    return summary.parent, json.loads(summary.read_text())


def test_a_run_reports_mean_average_precision(tmp_path):
    run, summary = fit(tmp_path, "--config=methods/promptfl")
    scores = summary["metrics"]["last round"]["held_out/pixel"]
    low, high = scores["intervals"]["accuracy"]
    assert 0 < low <= high <= 100
    assert summary["accuracy"]["last round (1)"]["held_out/pixel"] == pytest.approx(scores["accuracy"])
    predictions = read_predictions(run)["last round"]["held_out/pixel"]
    data = IconScenes(num_classes=6, held_out="pixel")
    assert predictions.labels.shape == (scores["images"], 6)
    assert len(predictions.thresholds) == 6
    shown = [set(data._loaded[1][label].split("|")) for label in data.images["pixel"].labels]
    assert [set(np.array(data.class_names)[row == 1]) for row in predictions.labels] == shown


def test_methods_for_one_label_are_refused_by_name(tmp_path):
    with pytest.raises(UserError, match="PLAN does not support several labels per image"):
        fit(tmp_path, "--config=methods/plan")


def test_a_method_without_negative_class_is_refused(tmp_path):
    data = IconScenes(num_classes=3, held_out="pixel", cache_dir=None)
    federation = Federation(rounds=1, accelerator="cpu", default_root_dir=str(tmp_path))
    with pytest.raises(UserError, match="Build it with class_names=data"):
        federation.fit(PromptFL(data.class_names, clip="fedvlp-tiny"), data)


def test_protocols_of_classes_are_refused(tmp_path):
    with pytest.raises(UserError, match="support several labels; got base_to_new"):
        fit(tmp_path, "--config=methods/promptfl", "--config=protocols/base_to_new", "--data.held_out=null")
