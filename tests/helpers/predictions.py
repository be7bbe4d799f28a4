"""Predictions that no model made."""

import numpy as np
import torch

from fedvlp.core.predictions import Predictions


def draw(images, states=1, classes=5, clients=(), seed=0, right=0.6):
    """Returns predictions of unequal classes that are right with this probability, as sure as they come."""
    generator = torch.Generator().manual_seed(seed)
    labels = (classes * torch.rand(images, generator=generator) ** 2).int()
    other = torch.randint(classes, (states, images), generator=generator).int()
    is_right = torch.rand(states, images, generator=generator) < right
    confidence = 1 - torch.rand(states, images, generator=generator) ** 3  # some are 1 exactly, or nearly
    predicted = torch.where(is_right, labels, other)
    return Predictions(labels.numpy(), predicted.numpy(), confidence.numpy(), tuple(clients))


def chosen(predictions, order):
    """Returns the predictions of these images, in this order; an image may stand there several times."""
    predicted = predictions.predicted.take(order, axis=1)
    confidence = predictions.confidence.take(order, axis=1)
    return Predictions(predictions.labels[order], predicted, confidence, predictions.clients)


def renamed(predictions, classes):
    """Returns the predictions with other numbers for the classes."""
    classes = np.int32(classes)
    predicted = classes[predictions.predicted]
    return Predictions(classes[predictions.labels], predicted, predictions.confidence, predictions.clients)
