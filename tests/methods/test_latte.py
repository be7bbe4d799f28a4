"""Latte: equal to priority queues and sums over their entries, whatever the batches and the clients' order."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedvlp import Latte
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client

NAMES = ["dog", "red car", "owl"]
OPTIONS = {"memory_size": 2, "external_size": 2, "memory_weight": 0.7, "sharpness": 4.0, "entropy_weight": 1.5}


def images(count, seed):
    return torch.randn(count, 128, generator=torch.Generator().manual_seed(seed))


def train(method, clients):
    """Set the prototypes that clients with these images send; labels are wrong on purpose."""
    (phase,) = method.configure_phases()
    states = []
    for number, features in enumerate(clients):
        method.start_client(RoundContext(0, phase, Client(number, 0, len(features))))
        method.training_step(({"features": features}, torch.zeros(len(features), dtype=torch.long)), 0)
        states.append(method.upload_state())
    return method, {name: torch.stack([state[name] for state in states]) for name in states[0]}


def entropy(logits):
    probabilities = logits.softmax(-1)
    return float(-(probabilities * probabilities.log()).sum()) / math.log(len(NAMES))


class Queues:
    """The paper's memory: a sorted list of entropies and images for each class."""

    def __init__(self, texts, scale):
        self.texts = texts
        self.scale = scale
        self.entries = [[] for _ in NAMES]

    def add(self, feature):
        logits = self.scale * self.texts @ feature
        queue = self.entries[int(logits.argmax())]
        queue.append((entropy(logits), feature))
        queue.sort(key=lambda entry: entry[0])
        del queue[OPTIONS["memory_size"] :]
        return logits

    def prototype(self, label):
        """Compute a class's prototype with its entropy; zero for an empty queue."""
        total = sum((math.exp(-1.5 * h) * image for h, image in self.entries[label]), torch.zeros(128).double())
        unit = total / total.norm() if self.entries[label] else total
        return entropy(self.scale * self.texts @ unit), unit


def slow_logits(features, clients, texts, scale):
    others = []
    for images_of_client in clients:
        memory = Queues(texts, scale)
        for feature in images_of_client:
            memory.add(feature)
        others.append([memory.prototype(label) for label in range(len(NAMES))])
    own = Queues(texts, scale)
    rows = []
    for feature in features:
        logits = own.add(feature)
        row = []
        for label in range(len(NAMES)):
            _, prototype = own.prototype(label)
            ranked = sorted((client[label] for client in others), key=lambda entry: -float(entry[1] @ prototype))
            merged = sorted(own.entries[label] + ranked[:2], key=lambda entry: entry[0])[:2]
            total = sum(math.exp(4 * float(image @ feature) - 1.5 * h) * image for h, image in merged)
            row.append(logits[label] + 0.7 * scale * (total / total.norm()) @ feature)
        rows.append(torch.stack(row))
    return torch.stack(rows)


def test_it_equals_priority_queues(clip):
    clients = [images(20, seed) for seed in (1, 2, 3)]
    features = images(25, seed=4)
    method, state = train(Latte(NAMES, 3, clip, **OPTIONS), clients)
    method.load_state(state)
    method.see_test_images([])
    unit = [F.normalize(each.double(), dim=-1) for each in (features, *clients)]
    expected = slow_logits(unit[0], unit[1:], method.text_features.double(), clip.logit_scale)
    torch.testing.assert_close(method({"features": features}).double(), expected, rtol=1e-4, atol=1e-4)


def test_neither_batches_nor_the_order_of_clients_matter(clip):
    clients = [images(20, seed) for seed in (1, 2, 3)]
    features = images(25, seed=4)
    results = []
    for order, size in ((clients, 25), (clients[::-1], 7)):
        # All clients' prototypes are retrieved, because the order decides between equal similarities.
        method, state = train(Latte(NAMES, 3, clip, **(OPTIONS | {"external_size": 3})), order)
        method.load_state(state)
        method.see_test_images([])
        results.append(torch.cat([method({"features": batch}) for batch in features.split(size)]))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("weight", [0.0, 0.4])
def test_without_weight_it_is_zero_shot_clip(clip, weight):
    method = Latte(NAMES, 3, clip, memory_weight=weight)
    features = {"features": images(9, seed=5)}
    is_equal = torch.allclose(method(features), method.baseline()(features), atol=1e-5)
    assert is_equal == (weight == 0)
