"""The smallest possible method, clients with a few labelled points, and their federation."""

import torch
import torch.nn.functional as F
from torch import nn

from fedvlp.callbacks import Checkpoints, MetricsFile
from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import Phase
from fedvlp.core.protocols import EvaluationSplit
from fedvlp.core.state import Client
from fedvlp.core.strategies import FedAvg
from fedvlp.federation import Federation
from fedvlp.training.callback import FederationCallback
from tests.helpers.trainer_options import grouped


class Backbone:
    """A fake CLIP that uses pixels as features."""

    class spec:
        pass

    @staticmethod
    def preprocess(image):
        return image

    train_preprocess = preprocess

    @staticmethod
    def encode_image(images):
        return images

    @staticmethod
    def fingerprint():
        return "backbone"

    @staticmethod
    def cast_towers(dtype):
        pass


class Linear(FederatedModule):
    """A linear classifier, the smallest method."""

    def __init__(self, learning_rate=0.5):
        super().__init__(lambda parameters: torch.optim.SGD(parameters, lr=learning_rate))
        self.clip = Backbone()
        self.weight = nn.Parameter(torch.zeros(3, 4))

    def precompute(self, images):
        return {"features": images}

    def forward(self, inputs):
        return self.precomputed(inputs)["features"] @ self.weight.mT

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss


class PersonalBias(Linear):
    """A method with two phases, a personal bias and a stateful optimizer."""

    personal = ("bias",)

    def __init__(self):
        super().__init__()
        self.make_optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=0.1)
        self.bias = nn.Parameter(torch.zeros(3))

    def configure_phases(self):
        both = Phase("both", train=("weight", "bias"), upload=("weight",), strategy=FedAvg())
        return [both, Phase("weight", train=("weight",), upload=("weight",), strategy=FedAvg())]

    def forward(self, inputs):
        return super().forward(inputs) + self.bias


def points_split(role, domain, client, loader):
    """Create the evaluation split of one domain."""
    return EvaluationSplit(f"{role}/{domain}", role, domain, [client] if client else [], loader, num_examples=0)


class Points:
    """Clients with a few labelled points each."""

    batch_size = 4
    protocol = "points"
    split_hash = "points"
    class_names = ["a", "b", "c"]  # noqa: RUF012
    held_out_domains = ["other"]  # noqa: RUF012
    trainer = None

    def describe(self):
        return {
            "name": "points",
            "images": "points",
            "kind": "leave-domains-out",
            "held_out": self.held_out_domains,
            "partition": "points",
            "shots": None,
        }

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
        """Draw labels, and features that are their one-hot vectors with some noise."""
        generator = torch.Generator().manual_seed(number)
        labels = torch.randint(3, (count,), generator=generator)
        noise = 0.1 * torch.randn(count, 4, generator=generator)
        return F.one_hot(labels, 4).float() + noise, labels

    def train_dataloader(self, client=None, seed=None, once=False):
        points, labels = self.points(client.id, client.num_examples)
        order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
        if self.spoil and client.id == 0:
            points = points * float("nan")
        return [({"features": points[i]}, labels[i]) for i in order.split(self.batch_size)]

    def evaluation_splits(self):
        def batches(number):
            points, labels = self.points(number, 20)
            return [({"features": points}, labels)]

        own = [points_split("validation", client.name, client, batches(100 + client.id)) for client in self.clients]
        return [*own, points_split("held_out", "other", None, batches(200))]


def federation(tmp_path, **options):
    """Create a federation, by default of three rounds that write no files.

    Options of a group may be passed without the group.
    """
    defaults = {"rounds": 3, "accelerator": "cpu", "default_root_dir": str(tmp_path), "default_callbacks": False}
    return Federation(**grouped({**defaults, **options}))


def make_callback(**hooks):
    """Create a callback with these functions as its hooks."""
    return type("Noting", (FederationCallback,), {name: staticmethod(hook) for name, hook in hooks.items()})()


def file_callbacks():
    """Create options with the callbacks that write files in every round."""
    return {"callbacks": [Checkpoints(), MetricsFile()]}
