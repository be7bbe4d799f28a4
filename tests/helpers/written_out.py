"""Local training of the toy federation with plain tensors, so that a rule can be written as its paper has it."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from tests.helpers.toy_federation import Points
from tests.helpers.toy_federation import federation as any_federation

RATE = 0.5


def federation(tmp_path, **options):
    """A federation of three rounds that writes nothing."""
    return any_federation(tmp_path, **{"default_callbacks": False, **options})


class Whole(Points):
    """Three clients of 8, 12 and 16 points, each client's in one batch, so that their order does not matter."""

    batch_size = 100


class Hard(Whole):
    """Three clients that draw the matrix apart: each has the classes in another order, and much noise."""

    def points(self, number, count):
        points, labels = super().points(number, count)
        noise = torch.randn(points.shape, generator=torch.Generator().manual_seed(number))
        return points + noise, (labels + number % 100) % 3


class Equal(Whole):
    """Three clients of equally many points, but not of the same."""

    def __init__(self):
        super().__init__()
        self.clients = [replace(client, num_examples=8) for client in self.clients]


class Alike(Equal):
    """Three clients of the same points."""

    def points(self, number, count):
        return super().points(number if number >= 100 else 0, count)


def shares(data):
    """The clients' shares of all training points, p_k."""
    total = sum(client.num_examples for client in data.clients)
    return [client.num_examples / total for client in data.clients]


def loss(data, client, weight):
    """The mean cross-entropy on a client's points."""
    points, labels = data.points(client.id, client.num_examples)
    return F.cross_entropy(points @ weight.T, labels)


def gradient(function, weight):
    """The gradient of a function of the matrix, and no graph."""
    weight = weight.detach().requires_grad_()
    (found,) = torch.autograd.grad(function(weight), weight)
    return found
