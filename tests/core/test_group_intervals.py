"""Intervals over groups, such as patients: whole groups are drawn for all scores."""

from dataclasses import replace

import numpy as np
import pytest

from fedvlp.core.predictions import Predictions, interval, resample, several_label_scores, two_class_scores

GROUPS = 14


def draw_classes(seed=0):
    """Draw two states' predictions of two classes; the images of a group tend to be of one class and right together."""
    generator = np.random.default_rng(seed)
    groups = np.concatenate([np.arange(GROUPS), generator.integers(0, GROUPS, 46)]).astype(np.int32)
    labels = (generator.random(60) < np.where(groups % 3 == 0, 0.8, 0.2)).astype(np.int32)
    second = (generator.normal(0.4 + 0.2 * labels + 0.04 * (groups % 5), 0.15, (2, 60)).clip(0.02, 0.98)).round(2)
    confidence = np.maximum(second, 1 - second).astype(np.float32)
    return Predictions(labels, (second > 0.5).astype(np.int32), confidence, threshold=0.6, groups=groups)


def draw_labels(seed=0):
    """Draw predictions of three labels per image with the same groups; some are unknown."""
    generator = np.random.default_rng(seed)
    groups = draw_classes().groups
    labels = (generator.random((60, 3)) < 0.4).astype(np.int8)
    labels[generator.random((60, 3)) < 0.1] = -1
    confidence = (generator.random((2, 60, 3)) + 0.05 * (groups % 5)[:, None]).clip(0, 1).astype(np.float32)
    return Predictions(labels, (confidence > 0.5).astype(np.int8), confidence, groups=groups)


def sample(split, name="test/a"):
    """Compute all scores' resamples."""
    if split.has_several_labels:
        return several_label_scores(split, name)[1]
    return resample(split, 2, name) | two_class_scores(split, name, ["no", "yes"])[1]


def score(split):
    """Compute all scores of the images themselves."""
    if split.has_several_labels:
        return several_label_scores(split, "")[0]
    right = split.predicted == split.labels
    recalls = [right[:, split.labels == label].mean() for label in (0, 1)]
    scores = two_class_scores(replace(split, groups=None), "", ["no", "yes"])[0]
    return {"accuracy": 100 * right.mean(), "balanced_accuracy": 100 * np.mean(recalls), **scores}


def select(split, rows, **changes):
    """Select images by index; an index may be repeated."""
    arrays = {"labels": split.labels[rows], "predicted": split.predicted[:, rows]}
    return replace(split, **arrays, confidence=split.confidence[:, rows], **changes)


@pytest.mark.parametrize("draw", [draw_classes, draw_labels])
def test_resamples_match_a_loop_that_concatenates_the_images_of_drawn_groups(draw, monkeypatch):
    split = draw()
    found = sample(split)
    monkeypatch.setattr("fedvlp.core.predictions.RESAMPLES", 100)  # the loop needs only the scores
    members = [np.flatnonzero(split.groups == group) for group in range(GROUPS)]
    generator = np.random.default_rng(5)
    slow = []
    while len(slow) < 300:
        rows = np.concatenate([members[group] for group in generator.integers(GROUPS, size=GROUPS)])
        if split.has_several_labels or len(set(split.labels[rows])) == 2:
            slow.append(score(select(split, rows, groups=None)))
    for name in found.keys() & slow[0].keys():
        expected = np.array([scores[name] for scores in slow])
        assert found[name].shape == (1000,)
        # Resamples of labels are centred.
        mean = score(split)[name] if split.has_several_labels else expected.mean()
        assert found[name].mean() == pytest.approx(mean, abs=1.5)
        assert found[name].std() == pytest.approx(expected.std(), rel=0.2)


@pytest.mark.parametrize("draw", [draw_classes, draw_labels])
def test_copies_in_each_group_change_no_resample(draw):
    split = draw()
    one_each = replace(split, groups=np.arange(60, dtype=np.int32))
    rows = np.repeat(np.arange(60), 4)
    copies = select(one_each, rows, groups=rows.astype(np.int32))
    expected = sample(one_each)
    for name, values in sample(copies).items():
        assert values == pytest.approx(expected[name])
    as_images = interval(sample(replace(copies, groups=None))["accuracy"])
    assert np.ptp(interval(expected["accuracy"])) == pytest.approx(2 * np.ptp(as_images), rel=0.2)  # sqrt(4)


@pytest.mark.parametrize("draw", [draw_classes, draw_labels])
def test_groups_of_one_image_are_images(draw):
    split = replace(draw(), groups=None)
    expected = sample(split)
    for name, values in sample(replace(split, groups=np.arange(60, dtype=np.int32))).items():
        assert values.mean() == pytest.approx(expected[name].mean(), abs=1.0)
        # Two classes are drawn within each class only without groups, so that their ratio, and precision, varies less.
        if name != "average_precision":
            assert values.std() == pytest.approx(expected[name].std(), rel=0.15)


@pytest.mark.parametrize("draw", [draw_classes, draw_labels])
def test_neither_the_order_of_images_nor_the_numbers_of_groups_matter(draw):
    split = draw()
    order = np.random.default_rng(2).permutation(60)
    numbers = np.random.default_rng(3).permutation(100).astype(np.int32)
    shuffled = select(split, order, groups=numbers[split.groups[order]])
    again = sample(shuffled)
    assert all(np.array_equal(values, again[name]) for name, values in sample(split).items())
    assert not np.array_equal(sample(split, "test/b")["accuracy"], again["accuracy"])


def test_a_resample_without_one_of_the_classes_is_drawn_again():
    split = replace(draw_classes(), labels=(draw_classes().groups == 0).astype(np.int32))
    for values in sample(split).values():
        assert values.shape == (1000,)
        assert np.isfinite(values).all()
