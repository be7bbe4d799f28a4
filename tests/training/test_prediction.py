"""The CSV of predictions has the classes in the order of their labels, which need not be alphabetical."""

import csv
from pathlib import Path

import pytest
import torch

from fedvlp.training.prediction import predict_images
from tests.helpers.toy_federation import Linear, federation

NAMES = ["pear", "fig", "quince"]


class Named(Linear):
    def __init__(self, class_names):
        super().__init__()


def test_each_row_has_the_predicted_class_and_all_probabilities(tmp_path):
    module = Named(NAMES)
    module.load_state({"weight": torch.eye(3, 4)})
    logits = torch.tensor([[0.0, 3.0, 1.0, 0.0], [2.0, 0.5, 0.0, 0.0], [0.0, 1.0, 4.0, 0.0]])
    batches = [([Path("b.png"), Path("a.png")], logits[:2]), ([Path("c.png")], logits[2:])]
    found = predict_images(module, federation(tmp_path).fabric, batches, tmp_path / "new" / "predictions.csv")
    with open(tmp_path / "new" / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    assert found.labels.tolist() == [-1, -1, -1]
    assert found.predicted.tolist() == [[1, 0, 2]]
    assert found.confidence[0].tolist() == pytest.approx(
        [max(float(row[name]) for name in NAMES) for row in rows], abs=1e-6
    )
    assert list(rows[0]) == ["path", "class", *NAMES]
    assert [(row["path"], row["class"]) for row in rows] == [("b.png", "fig"), ("a.png", "pear"), ("c.png", "quince")]
    for row, expected in zip(rows, logits[:, :3].softmax(-1).tolist(), strict=True):
        assert [float(row[name]) for name in NAMES] == pytest.approx(expected, abs=1e-6)
