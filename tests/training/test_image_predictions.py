"""Predictions image by image: of each state that a split is measured with, and of images that are of no class."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedvlp.core.predictions import single_state
from fedvlp.training.evaluation import evaluate
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation, points_split

BIASES = {0: [0.0, 0.0, 9.0], 1: [3.0, 0.0, 0.0], 2: [0.0, 0.0, 0.0]}
PERSONAL = {client: {"bias": torch.tensor(bias)} for client, bias in BIASES.items()}


class WithOthers(Points):
    """Points, with some that are of no class."""

    def out_of_distribution_splits(self):
        noise = points_split("held_out", "noise", None, [({"features": torch.eye(4)[2:]}, torch.tensor([-1, -1]))])
        return [replace(noise, name="out_of_distribution/noise")]


def measured(tmp_path, module, data, personal=None):
    predictions = {}
    module.eval()
    fabric = federation(tmp_path).fabric
    state = {"weight": torch.eye(3, 4)}
    scores = evaluate(module, data, fabric, state, personal or {}, None, predictions)
    return scores, predictions


def in_plain_words(data, name, bias):
    """The label, predicted class and confidence of each image, one at a time."""
    split = next(split for split in data.evaluation_splits() if split.name == name)
    found = []
    for inputs, labels in split.loader:
        for features, label in zip(inputs["features"], labels.tolist(), strict=True):
            odds = [torch.exp(features[i] + bias[i]).item() for i in range(3)]
            found.append((label, odds.index(max(odds)), max(odds) / sum(odds)))
    return found


@pytest.mark.parametrize("unseen", ["each", "mean", "shared"])
def test_there_is_a_row_for_each_state_and_a_column_for_each_image(tmp_path, unseen):
    module = PersonalBias()
    module.unseen = unseen
    data = Points()
    scores, predictions = measured(tmp_path, module, data, PERSONAL)
    for client in data.clients:
        found = predictions[f"validation/{client.name}"]
        assert found.clients == (client.name,)
        expected = in_plain_words(data, f"validation/{client.name}", BIASES[client.id])
        assert list(zip(found.labels.tolist(), found.predicted[0].tolist(), strict=True)) == [e[:2] for e in expected]
        assert found.confidence[0].tolist() == pytest.approx([e[2] for e in expected], rel=1e-5)
    held_out = predictions["held_out/other"]
    assert held_out.predicted.shape == held_out.confidence.shape == (3 if unseen == "each" else 1, 20)
    assert held_out.clients == (tuple(c.name for c in data.clients) if unseen == "each" else ())
    for name, found in predictions.items():
        rights = (found.predicted == found.labels).double().mean()
        assert 100 * rights.item() == pytest.approx(scores[name])


def test_images_of_no_class_are_measured_without_an_accuracy(tmp_path):
    plain, _ = measured(tmp_path, Linear(), Points())
    scores, predictions = measured(tmp_path, Linear(), WithOthers())
    assert scores == plain
    noise = predictions["out_of_distribution/noise"]
    assert noise.predicted.tolist() == [[2, 0]]
    assert noise.confidence[0].tolist() == pytest.approx([torch.e / (torch.e + 2), 1 / 3])
    assert noise.clients == ()


def test_predictions_do_not_depend_on_batches(tmp_path):
    class Smaller(Points):
        def evaluation_splits(self):
            return [replace(split, loader=parts_of(split.loader)) for split in super().evaluation_splits()]

    def parts_of(loader):
        ((inputs, labels),) = loader
        parts = zip(inputs["features"].split(3), labels.split(3), strict=True)
        return [({"features": features}, of_part) for features, of_part in parts]

    _, whole = measured(tmp_path, PersonalBias(), Points(), PERSONAL)
    _, parts = measured(tmp_path, PersonalBias(), Smaller(), PERSONAL)
    for name, found in whole.items():
        assert torch.equal(found.predicted, parts[name].predicted)
        assert torch.allclose(found.confidence, parts[name].confidence)


def test_what_is_no_number_has_no_confidence():
    nan = float("nan")
    assert single_state(torch.tensor([1]), torch.tensor([0]), torch.tensor([nan])).confidence.tolist() == [[0.0]]
