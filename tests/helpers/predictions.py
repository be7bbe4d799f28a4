"""Random predictions for tests."""

import torch

from fedvlp.core.predictions import Predictions


def draw(images, states=1, classes=5, clients=(), seed=0, right=0.6):
    """Draw predictions of imbalanced classes that are right with probability ``right``."""
    generator = torch.Generator().manual_seed(seed)
    labels = (classes * torch.rand(images, generator=generator) ** 2).int()
    other = torch.randint(classes, (states, images), generator=generator).int()
    is_right = torch.rand(states, images, generator=generator) < right
    confidence = 1 - torch.rand(states, images, generator=generator) ** 3  # some are exactly or almost 1
    predicted = torch.where(is_right, labels, other)
    return Predictions(labels.numpy(), predicted.numpy(), confidence.numpy(), tuple(clients))


def select_images(predictions, order):
    """Select predictions by image index, in this order. An index may be repeated."""
    predicted = predictions.predicted.take(order, axis=1)
    confidence = predictions.confidence.take(order, axis=1)
    return Predictions(predictions.labels[order], predicted, confidence, predictions.clients)
