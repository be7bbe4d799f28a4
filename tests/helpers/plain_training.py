"""Local training of the toy federation in plain tensors, to write aggregation rules like in their papers."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from tests.helpers.toy_federation import Points

RATE = 0.5


class Whole(Points):
    """Three clients with 8, 12 and 16 points in one batch each, so that the order of points has no effect."""

    batch_size = 100


class Hard(Whole):
    """Three clients with conflicting updates: each orders the classes differently and has much noise."""

    def points(self, number, count):
        points, labels = super().points(number, count)
        noise = torch.randn(points.shape, generator=torch.Generator().manual_seed(number))
        return points + noise, (labels + number % 100) % 3


class Equal(Whole):
    """Three clients with equally many, but different points."""

    def __init__(self):
        super().__init__()
        self.clients = [replace(client, num_examples=8) for client in self.clients]


class Alike(Equal):
    """Three clients with the same points."""

    def points(self, number, count):
        return super().points(number if number >= 100 else 0, count)


def shares(data):
    """Compute each client's share p_k of all training points."""
    total = sum(client.num_examples for client in data.clients)
    return [client.num_examples / total for client in data.clients]


def loss(data, client, weight):
    """Compute the mean cross-entropy on a client's points."""
    points, labels = data.points(client.id, client.num_examples)
    return F.cross_entropy(points @ weight.T, labels)


def gradient(function, weight):
    """Compute the gradient of a function of the matrix, without a graph."""
    weight = weight.detach().requires_grad_()
    (result,) = torch.autograd.grad(function(weight), weight)
    return result
