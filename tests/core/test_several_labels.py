"""Scores, thresholds and loss of several labels per image, against torchmetrics and direct computations."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torchmetrics.functional.classification import multilabel_auroc, multilabel_average_precision, multilabel_f1_score

from fedvlp.core.predictions import Predictions, f1_thresholds, several_label_scores, with_thresholds
from fedvlp.core.several_labels import classification_loss, image_losses, is_correct

UNKNOWN = -1


@pytest.fixture
def split():
    """Two states' predictions of 60 images with five labels, without ties; the last label never occurs."""
    generator = np.random.default_rng(0)
    labels = (generator.random((60, 5)) < 0.3).astype(np.int8)
    labels[generator.random((60, 5)) < 0.1] = UNKNOWN
    labels[:, 4] = np.minimum(labels[:, 4], 0)
    confidence = (generator.permutation(600).reshape(2, 60, 5).astype(np.float32) + 0.5) / 600
    return Predictions(labels, (confidence >= 0.5).astype(np.int8), confidence)


def reference(function, split, average, **options):
    """Average a score of torchmetrics over the states; labels that never occur are left out."""
    labels = torch.from_numpy(split.labels).long()
    by_state = []
    for confidence in torch.from_numpy(split.confidence):
        scores = function(confidence, labels, 5, average=average, ignore_index=UNKNOWN, **options)
        by_state.append(100 * scores[:4].mean().item())
    return np.mean(by_state)


def test_ranking_scores_equal_torchmetrics(split):
    scores, _, precision = several_label_scores(split, "test/a")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchmetrics warns of the label without positives
        assert scores["accuracy"] == pytest.approx(reference(multilabel_average_precision, split, "none"), abs=1e-4)
        assert scores["class_auroc"] == pytest.approx(reference(multilabel_auroc, split, "none"), abs=1e-4)
    assert split.accuracy == pytest.approx(scores["accuracy"])
    assert np.mean(precision[:4]) == pytest.approx(scores["accuracy"])
    assert np.isnan(precision[4])


def test_f1_equals_torchmetrics_over_both_states(split):
    scores, _, _ = several_label_scores(split, "test/a")
    labels = torch.from_numpy(np.concatenate([split.labels, split.labels])).long()
    predicted = torch.from_numpy(split.confidence.reshape(-1, 5))
    f1 = multilabel_f1_score(predicted, labels, 5, average="none", ignore_index=UNKNOWN)
    micro = multilabel_f1_score(predicted, labels, 5, average="micro", ignore_index=UNKNOWN)
    assert scores["macro_f1"] == pytest.approx(100 * f1.mean().item(), abs=1e-4)
    assert scores["micro_f1"] == pytest.approx(100 * micro.item(), abs=1e-4)


def test_intervals_equal_a_direct_bootstrap(split):
    _, samples, _ = several_label_scores(split, "test/a")
    generator = np.random.default_rng(1)
    direct = []
    for _ in range(300):
        rows = generator.integers(0, 60, 60)
        drawn = Predictions(split.labels[rows], split.predicted[:, rows], split.confidence[:, rows])
        direct.append(drawn.accuracy)
    assert np.mean(samples["accuracy"]) == pytest.approx(split.accuracy)
    assert np.std(samples["accuracy"]) == pytest.approx(np.std(direct), rel=0.15)
    assert all(len(values) == 1000 for values in samples.values())


def test_scores_do_not_depend_on_the_order_of_images(split):
    rows = np.random.default_rng(2).permutation(60)
    shuffled = Predictions(split.labels[rows], split.predicted[:, rows], split.confidence[:, rows])
    scores, samples, _ = several_label_scores(split, "test/a")
    others, other_samples, _ = several_label_scores(shuffled, "test/a")
    assert scores == others
    assert all(np.array_equal(samples[name], other_samples[name]) for name in samples)


def test_thresholds_have_the_best_f1_of_all_candidates(split):
    thresholds = f1_thresholds([split])
    for label in range(4):
        known = split.labels[:, label] != UNKNOWN
        truth = np.tile(split.labels[known, label], 2)
        values = split.confidence[:, known, label].ravel()

        def f1(threshold, truth=truth, values=values):
            predicted = values >= threshold
            return 2 * (predicted & (truth == 1)).sum() / (predicted.sum() + truth.sum())

        assert f1(thresholds[label]) == max(map(f1, values))
    assert thresholds[4] == 0.5
    chosen = with_thresholds(split, thresholds)
    assert np.array_equal(chosen.predicted[0, :, 0], split.confidence[0, :, 0] >= np.float32(thresholds[0]))


def test_equal_probabilities_share_a_side_of_the_threshold():
    labels = np.int8([[1], [0], [0], [1]])
    confidence = np.float32([[[0.8], [0.8], [0.8], [0.3]]])
    tied = Predictions(labels, (confidence >= 0.5).astype(np.int8), confidence)
    assert f1_thresholds([tied]) == (pytest.approx(0.3),)  # all four: F1 2/3; the first three: 2/5


def test_unknown_labels_have_no_loss_and_no_gradient():
    logits = torch.randn(3, 5, requires_grad=True)
    targets = torch.tensor([[1.0, 0.0, torch.nan, 1.0], [torch.nan] * 4, [0.0, 0.0, 1.0, torch.nan]])
    expected = torch.zeros(())
    for row, target in zip(logits, targets, strict=True):
        for label in range(4):
            if not target[label].isnan():
                z = row[label] - row[4]
                # -log p or -log (1 - p), averaged over the image's three known labels
                expected = expected + (F.softplus(z) - z * target[label]) / 3
    loss = classification_loss(logits, targets)
    assert loss.item() == pytest.approx(expected.item() / 3, rel=1e-5)
    assert image_losses(logits, targets)[1] == 0
    loss.backward()
    assert logits.grad[1].abs().sum() == 0


def test_loss_and_hits_of_one_label_are_those_of_classes():
    logits = torch.randn(4, 3)
    labels = torch.tensor([0, 2, 1, 0])
    assert torch.equal(classification_loss(logits, labels), F.cross_entropy(logits, labels))
    assert torch.equal(is_correct(logits, labels), (logits.argmax(-1) == labels).float())
