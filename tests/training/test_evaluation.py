"""Accuracies and predictions of splits with different classes and sizes, compared with counts in plain Python."""

import math
from dataclasses import replace

import pytest
import torch

from fedvlp.core.metrics import single_state
from fedvlp.core.phases import Phase
from fedvlp.core.state import Client
from fedvlp.core.strategies import Local
from fedvlp.training.evaluation import evaluate, filter_roles
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation, points_split

LABELS = [2, 0, 0, 0, 0, 1, 0]
GUESSES = [2, 0, 0, 1, 0, 0, 2]  # 4 of 7 are right: 3 of 5, 0 of 1, 1 of 1


def points(guesses, labels, sizes):
    """Create batches of these sizes that an identity weight classifies as the guesses."""
    features = torch.nn.functional.one_hot(torch.tensor(guesses), 4).float()
    inputs = [{"features": each} for each in features.split(sizes)]
    return list(zip(inputs, torch.tensor(labels).split(sizes), strict=True))


class Unequal(Points):
    """One source domain with two clients, one with a single client, and a held-out domain."""

    def __init__(self):
        super().__init__()
        self.clients = [Client(4, 0, 8, "four"), Client(1, 0, 8, "one"), Client(2, 1, 8, "two")]

    def evaluation_splits(self):
        ink = points_split("validation", "ink", self.clients[0], points(GUESSES, LABELS, [2, 5]))
        ink.clients.append(self.clients[1])
        paint = points_split("validation", "paint", self.clients[2], points([1, 1, 0], [1, 2, 0], [3]))
        test = points_split("test", "paint", self.clients[2], points([1, 2], [1, 0], [1, 1]))
        other = points_split("held_out", "other", None, points([1, 1, 1, 0], [1, 1, 1, 2], [3, 1]))
        return [ink, paint, test, other]


def evaluate_splits(tmp_path, module, personal, data=None):
    predictions = {}
    module.eval()
    fabric = federation(tmp_path).fabric
    state = {"weight": torch.eye(3, 4)}
    scores = evaluate(module, data or Unequal(), fabric, state, personal, predictions=predictions)
    return scores, predictions


def test_images_count_equally_in_a_domain_and_domains_in_the_mean(tmp_path):
    scores, _ = evaluate_splits(tmp_path, Linear(), {})
    assert scores == pytest.approx(
        {
            "validation/ink": 100 * 4 / 7,
            "validation/paint": 100 * 2 / 3,
            "validation": 100 * (4 / 7 + 2 / 3) / 2,
            "test/paint": 50.0,
            "test": 50.0,
            "held_out/other": 75.0,
            "held_out": 75.0,
        }
    )


def test_a_method_that_shares_nothing_has_no_global_model(tmp_path):
    class FullyPersonal(PersonalBias):
        personal = ("weight", "bias")

        def configure_phases(self):
            return [Phase("own", train=("weight", "bias"), upload=(), strategy=Local())]

    class Personal(Points):
        def evaluation_splits(self):
            (split,) = (split for split in super().evaluation_splits() if split.role == "held_out")
            owner = self.clients[0]
            return [replace(split, name=f"{role}/a", role=role, clients=[owner]) for role in ("personal", "global")]

    names = []
    for module in (PersonalBias(), FullyPersonal()):
        scores = evaluate(
            module, Personal(), federation(tmp_path).fabric, module.shared_state(), {}, module.personal_state()
        )
        names.append(scores.keys())
    assert "global_worst" in names[0]
    assert names[1] == {"personal/a", "personal", "personal_worst", "personal_spread"}


class TwoParts(PersonalBias):
    """Uses its bias only if personal tensors may be used."""

    def forward(self, inputs):
        logits = inputs["features"] @ self.weight.T
        return logits + self.bias if self.uses_personal else logits


@pytest.mark.parametrize(("held_out_evaluation", "held_out"), [("each", 100 / 3), ("mean", 0.0), ("shared", 75.0)])
def test_held_out_domains_are_evaluated_as_the_method_declares(tmp_path, held_out_evaluation, held_out):
    """The clients classify 1, 0 and 3 of 4 images correctly. The first client is the most confident.

    Other domains are evaluated with their clients' tensors. Two clients have one domain and always predict one class.
    """
    module = TwoParts()
    module.held_out_evaluation = held_out_evaluation
    biases = {4: [0.0, 0.0, 9.0], 1: [3.0, 0.0, 0.0], 2: [0.0, 0.0, 0.0]}
    personal = {client: {"bias": torch.tensor(bias)} for client, bias in biases.items()}
    scores, _ = evaluate_splits(tmp_path, module, personal)
    assert scores["validation/ink"] == pytest.approx(100 * (1 / 7 + 5 / 7) / 2)  # clients 4 and 1
    assert scores["validation/paint"] == pytest.approx(200 / 3)  # client 2
    assert scores["held_out/other"] == pytest.approx(held_out)
    assert module.uses_personal


def test_scores_are_filtered_by_role():
    scores = {"validation/a": 1.0, "validation": 2.0, "test/a": 3.0, "test": 4.0, "held_out/b": 5.0}
    assert filter_roles(scores, ("validation",)) == {"validation/a": 1.0, "validation": 2.0}
    assert filter_roles(scores, ("held_out", "test")) == {"test/a": 3.0, "test": 4.0, "held_out/b": 5.0}
    with pytest.raises(UserError, match="nothing to test"):
        filter_roles(scores, ("tests",))


BIASES = {0: [0.0, 0.0, 9.0], 1: [3.0, 0.0, 0.0], 2: [0.0, 0.0, 0.0]}
PERSONAL = {client: {"bias": torch.tensor(bias)} for client, bias in BIASES.items()}


class WithOthers(Points):
    """Points with a split of images that belong to no class."""

    def out_of_distribution_splits(self):
        noise = points_split("held_out", "noise", None, [({"features": torch.eye(4)[2:]}, torch.tensor([-1, -1]))])
        return [replace(noise, name="out_of_distribution/noise")]


def predict_slowly(data, name, bias):
    """Compute the label, predicted class and confidence of each image, one at a time."""
    split = next(split for split in data.evaluation_splits() if split.name == name)
    found = []
    for inputs, labels in split.loader:
        for features, label in zip(inputs["features"], labels.tolist(), strict=True):
            odds = [torch.exp(features[i] + bias[i]).item() for i in range(3)]
            found.append((label, odds.index(max(odds)), max(odds) / sum(odds)))
    return found


@pytest.mark.parametrize("held_out_evaluation", ["each", "mean", "shared"])
def test_predictions_have_a_row_per_state_and_a_column_per_image(tmp_path, held_out_evaluation):
    module = PersonalBias()
    module.held_out_evaluation = held_out_evaluation
    data = Points()
    scores, predictions = evaluate_splits(tmp_path, module, PERSONAL, data)
    for client in data.clients:
        found = predictions[f"validation/{client.name}"]
        assert found.clients == (client.name,)
        expected = predict_slowly(data, f"validation/{client.name}", BIASES[client.id])
        assert list(zip(found.labels.tolist(), found.predicted[0].tolist(), strict=True)) == [e[:2] for e in expected]
        assert found.confidence[0].tolist() == pytest.approx([e[2] for e in expected], rel=1e-5)
    held_out = predictions["held_out/other"]
    assert held_out.predicted.shape == held_out.confidence.shape == (3 if held_out_evaluation == "each" else 1, 20)
    assert held_out.clients == (tuple(c.name for c in data.clients) if held_out_evaluation == "each" else ())
    for name, found in predictions.items():
        rights = (found.predicted == found.labels).mean()
        assert 100 * rights.item() == pytest.approx(scores[name])


def test_images_of_no_class_have_predictions_but_no_accuracy(tmp_path):
    plain, _ = evaluate_splits(tmp_path, Linear(), {}, Points())
    scores, predictions = evaluate_splits(tmp_path, Linear(), {}, WithOthers())
    assert scores == plain
    noise = predictions["out_of_distribution/noise"]
    assert noise.predicted.tolist() == [[2, 0]]
    assert noise.confidence[0].tolist() == pytest.approx([torch.e / (torch.e + 2), 1 / 3])
    assert noise.clients == ()


class Regions(Linear):
    """Two regions per image: the image, and its first feature moved to the second class."""

    def region_logits(self, inputs):
        logits = self(inputs)
        return torch.stack([logits, logits.roll(1, -1)], dim=1) + torch.tensor([0.0, 2.0, 0.0])


def test_images_have_scores_only_next_to_images_of_no_class(tmp_path):
    """The toy backbone has no temperature, so MCM is the maximum probability."""
    assert not any(each.scores for each in evaluate_splits(tmp_path, Regions(), {}, Points())[1].values())
    for module in (Linear(), Regions()):
        _, predictions = evaluate_splits(tmp_path, module, {}, WithOthers())
        scores = predictions["out_of_distribution/noise"].scores
        assert all(each.scores.keys() == scores.keys() for each in predictions.values())
        e = torch.e  # the logits are 0, 0, 1 and 0, 0, 0
        assert scores["energy"][0].tolist() == pytest.approx([math.log(2 + e), math.log(3)])
        assert scores["mcm"][0].tolist() == pytest.approx([e / (2 + e), 1 / 3])
        assert ("gl_mcm" in scores) == isinstance(module, Regions)
    # Both regions have the class with the logit 2: next to 0, 1 or 1, 0, and next to 0, 0.
    local = [e**2 / (e**2 + 1 + e), e**2 / (e**2 + 2)]
    assert scores["gl_mcm"][0].tolist() == pytest.approx([e / (2 + e) + local[0], 1 / 3 + local[1]])


def test_nan_has_confidence_zero():
    nan = float("nan")
    assert single_state(torch.tensor([1]), torch.tensor([0]), torch.tensor([nan])).confidence.tolist() == [[0.0]]
