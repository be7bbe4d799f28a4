"""Helpers for tests of data sets: synthetic images and splits, batches, and comparisons."""

import numpy as np
import pytest
import torch

from fedvlp.data import ArrayImages, ByDomain
from fedvlp.data.protocols import SplitPlan
from fedvlp.data.splits import SplitRule
from fedvlp.utils.errors import UserError


def images(counts, prefix="x"):
    """Create black images with the given number for each class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    pixels = np.zeros((len(labels), 2, 2, 3), np.uint8)
    return ArrayImages(pixels, labels, [f"{prefix}/{i}" for i in range(len(labels))])


def split(domains, sources, held_out, fraction=0.2, seed=0, partitioner=ByDomain(), **options):  # noqa: B008
    """Split domains with these options into their parts."""
    plan = SplitPlan(sources, held_out, SplitRule(fraction, seed=seed, **options), partitioner)
    return plan.parts(domains, num_classes=9)


def prepared(images):
    """Compute features and means of images, like ``FederatedModule.precompute``."""
    return {"features": images.flatten(1), "mean": images.mean((1, 2, 3))}


def batches(loader):
    return [(inputs, labels) for inputs, labels in loader]


def same_inputs(first, second):
    """Check whether two image tensors, or two dictionaries of tensors, are equal."""
    if isinstance(first, dict):
        return all(torch.equal(first[name], second[name]) for name in first | second)
    return torch.equal(first, second)


def same(first, second):
    """Check whether two passes yielded equal batches."""
    return len(first) == len(second) and all(
        same_inputs(inputs, others) and torch.equal(labels, other_labels)
        for (inputs, labels), (others, other_labels) in zip(first, second, strict=True)
    )


def refused(data, message):
    """Assert that a data set raises a UserError with this message."""
    with pytest.raises(UserError, match=message):
        data.prepare_data()
