"""What tests of data sets share: made-up images and splits, batches, and how they are compared."""

import numpy as np
import pytest
import torch

from fedvlp.data import ArrayImages, ByDomain
from fedvlp.data.protocols import SplitPlan
from fedvlp.data.splits import SplitRule
from fedvlp.utils.errors import UserError


def images(counts, prefix="x"):
    """Black images with so many of each class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    pixels = np.zeros((len(labels), 2, 2, 3), np.uint8)
    return ArrayImages(pixels, labels, [f"{prefix}/{i}" for i in range(len(labels))])


def split(domains, sources, held_out, fraction=0.2, seed=0, partitioner=ByDomain(), **options):  # noqa: B008
    """The parts of a split by a rule of these options."""
    plan = SplitPlan(sources, held_out, SplitRule(fraction, seed=seed, **options), partitioner)
    return plan.parts(domains, num_classes=9)


def prepared(images):
    """What a module with frozen parts may compute of images."""
    return {"features": images.flatten(1), "mean": images.mean((1, 2, 3))}


def batches(loader):
    """One pass over a loader."""
    return [(inputs, labels) for inputs, labels in loader]


def same_inputs(first, second):
    """Whether images, or tensors by name, are equal."""
    if isinstance(first, dict):
        return all(torch.equal(first[name], second[name]) for name in first | second)
    return torch.equal(first, second)


def same(first, second):
    """Whether two passes gave equal batches."""
    return len(first) == len(second) and all(
        same_inputs(inputs, others) and torch.equal(labels, other_labels)
        for (inputs, labels), (others, other_labels) in zip(first, second, strict=True)
    )


def refused(data, message):
    """Asserts that a data set is refused with a message for its user."""
    with pytest.raises(UserError, match=message):
        data.prepare_data()
