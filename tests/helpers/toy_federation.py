"""The smallest method there is, a few labelled points a client, and a federation of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import Client
from fedvlp.federation import Federation


class Backbone:
    """Stands for CLIP: pixels are features."""

    class spec:
        pass

    preprocess = train_preprocess = staticmethod(lambda image: image)

    @staticmethod
    def fingerprint():
        return "backbone"


class Linear(FederatedModule):
    """A linear classifier, the smallest method."""

    prepare_options = ()

    def __init__(self, learning_rate=0.5):
        super().__init__(lambda parameters: torch.optim.SGD(parameters, lr=learning_rate))
        self.save_hyperparameters()
        self.clip = Backbone()
        self.weight = nn.Parameter(torch.zeros(3, 4))

    def prepare(self, images):
        return {"features": images}

    def forward(self, inputs):
        return self.constants(inputs)["features"] @ self.weight.mT

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss


class Split:
    def __init__(self, role, domain, client, loader):
        self.role, self.domain, self.loader = role, domain, loader
        self.clients = [client] if client else []
        self.name = f"{role}/{domain}"


class Points:
    """Clients with a few labelled points each."""

    batch_size = 4
    protocol = "points"
    split_hash = "points"
    class_names = ["a", "b", "c"]  # noqa: RUF012
    held_out_domains = ["other"]  # noqa: RUF012
    trainer = None

    def describe(self):
        split = {"kind": "leave-domains-out", "held_out": self.held_out_domains, "partition": "points", "shots": None}
        return {"name": "points", "images": "points", **split}

    def __init__(self, clients=3, spoil=False):
        self.clients = [Client(i, i, 8 + 4 * i, f"client{i}") for i in range(clients)]
        self.spoil = spoil

    def prepare_data(self):
        pass

    def setup(self, stage):
        pass

    def bind(self, **options):
        pass

    def encode(self):
        pass

    def points(self, number, count):
        generator = torch.Generator().manual_seed(number)
        labels = torch.randint(3, (count,), generator=generator)
        return F.one_hot(labels, 4).float() + 0.1 * torch.randn(count, 4, generator=generator), labels

    def train_dataloader(self, client=None, seed=None):
        points, labels = self.points(client.id, client.num_examples)
        order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
        if self.spoil and client.id == 0:
            points = points * float("nan")
        return [({"features": points[i]}, labels[i]) for i in order.split(self.batch_size)]

    def evaluation_splits(self):
        def batches(number):
            points, labels = self.points(number, 20)
            return [({"features": points}, labels)]

        own = [Split("validation", c.name, c, batches(100 + c.id)) for c in self.clients]
        return [*own, Split("held_out", "other", None, batches(200))]


def federation(tmp_path, **options):
    return Federation(**{"rounds": 3, "accelerator": "cpu", "default_root_dir": str(tmp_path), **options})
