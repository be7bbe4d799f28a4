"""What every add-on is: something that a client's training does beside the method, and what is exchanged for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from lightning import Fabric
from torch import Tensor
from torch.optim import Optimizer

from fedvlp.core.aggregation.base import ClientNoise
from fedvlp.core.aggregation.privacy import noised_upload
from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import Inputs
from fedvlp.core.state import Client, ClientUpdate, State
from fedvlp.utils.ranges import PositiveFloat
from fedvlp.utils.seeding import derive_seed

# Sets a client's noise apart from the other draws of its seed.
NOISE = 1


@dataclass(frozen=True)
class LocalContext:
    """One client's training in one phase, as an add-on sees it; the client's tensors are in the module.

    Attributes:
        optimizer: takes the steps, as Fabric has set it up; None where nothing is trained.
        names: the trained tensors that are averaged over clients; an add-on that corrects updates corrects no others.
        trained: all trained tensors by name, themselves and no copies.
        start: copies of them as training begins.
        downloaded: all that the client downloaded for the method.
        received: what the add-on's server part sent, by name.
        kept: what the add-on kept on this client after its last training in this phase; empty before its first.
        steps: optimizer steps of this training, at least 1.
        proximal_weight: Sum of all add-ons' ``proximal_weight``.
        seed: of the client's random draws in this phase and round.
        accuracy: measures the client's tensors as they are now on its validation images, in [0, 1].
        scratch: tensors that the add-on needs until the client's training ends; empty as it begins.
    """

    client: Client
    module: FederatedModule
    fabric: Fabric
    optimizer: Optimizer | None
    names: tuple[str, ...]
    trained: Mapping[str, Tensor]
    start: State
    downloaded: State
    received: State
    kept: State
    steps: int
    proximal_weight: float
    seed: int
    accuracy: Callable[[], float]
    scratch: State = field(default_factory=dict)

    @property
    def averaged(self) -> State:
        """The averaged tensors as training began: w_t."""
        return {name: self.start[name] for name in self.names}


class Finished(NamedTuple):
    """What an add-on makes of a client's training.

    Attributes:
        upload: what the client sends for the method.
        sent: what it sends for the add-on's server part; the same names and shapes for all clients.
        kept: what the client keeps for its next training in this phase.
    """

    upload: State
    sent: Mapping[str, Tensor] = {}
    kept: Mapping[str, Tensor] = {}


@dataclass(frozen=True)
class ServerRound:
    """What the server has before it combines the uploads of a phase.

    Attributes:
        updates: of the cohort, without what add-ons sent; at least one.
        sent: what the add-on's client part sent, one an update.
        shared: the tensors that the clients started from.
        memory: what the add-on remembered in the last round of this phase; empty before the first.
        names: the tensors that are averaged.
        weights: how much each client counts in averages, by its id: its images, or 1 where each counts once.
        round: number of finished rounds of all ``rounds``.
    """

    updates: Sequence[ClientUpdate]
    sent: Sequence[State]
    shared: State
    memory: State
    names: tuple[str, ...]
    clients: Sequence[Client]
    weights: Mapping[int, float]
    round: int
    rounds: int


class AddOn:
    """Changes local training, whatever the method; a subclass is a frozen dataclass and overrides the hooks it needs.

    Hooks are called in the order in which they stand here. They are pure: what has to be remembered goes through what
    they return, and is in every checkpoint.

    Attributes:
        needs_average: whether it is at work only in phases that average what clients train.
        needs_accuracy: whether it measures clients on their own validation images.
        needs_gradients: whether it needs gradients unchanged, neither scaled nor clipped.
        needs_rounds: whether it depends on the number of all rounds.
        sets_weights: whether it decides how much each client counts in an average.
    """

    needs_average: ClassVar[bool] = True
    needs_accuracy: ClassVar[bool] = False
    needs_gradients: ClassVar[bool] = False
    needs_rounds: ClassVar[bool] = False
    sets_weights: ClassVar[bool] = False

    @property
    def proximal_weight(self) -> float:
        """The weight mu, at least 0, if ``loss`` contains mu / 2 |w - w_t|^2; other add-ons take it into account."""
        return 0.0

    def download(self, memory: State, shared: State) -> State:
        """What clients download for the add-on, of its memory of this phase and the tensors that are averaged."""
        return {}

    def begin(self, local: LocalContext) -> None:
        """Called before the first step; may fill ``local.scratch``."""

    def loss(self, local: LocalContext, inputs: Inputs) -> Tensor | None:
        """What is added to the loss of each step; None for nothing."""
        return None

    def after_backward(self, local: LocalContext) -> None:
        """Called in each step once all gradients are there, before the optimizer takes it."""

    def finish(self, local: LocalContext, upload: State) -> Finished:
        """What the client sends and keeps after its last step; ``upload`` is what it would send, copies on the CPU."""
        return Finished(upload)

    def sent_like(self, averaged: State) -> State:
        """Tensors of the names, shapes and types of ``Finished.sent``, made of the averaged tensors."""
        return {}

    def before_aggregation(self, server: ServerRound) -> tuple[Sequence[ClientUpdate], State]:
        """The updates as they are to be combined, and what the add-on remembers."""
        return server.updates, {}

    def after_aggregation(self, server: ServerRound, combined: State) -> tuple[State, State]:
        """Change the tensors ``server.names`` as the strategy combined them; return also what is remembered."""
        return combined, {}


def squared_distance(trained: Mapping[str, Tensor], start: State) -> Tensor:
    """The squared Euclidean distance |w - w_t|^2 of trained tensors from where they started."""
    # Stacked, since Python's sum begins with an integer that is moved to the device.
    return torch.stack([(trained[name] - value).square().sum() for name, value in start.items()]).sum()


@dataclass(frozen=True)
class ClipGradients(AddOn):
    """Shortens the gradient of all tensors that a client trains together, as Lightning's ``gradient_clip_val`` does."""

    max_norm: PositiveFloat

    needs_average = False

    def after_backward(self, local: LocalContext) -> None:
        """Clips; a gradient that is not finite remains so, and the update is rejected."""
        if local.optimizer is not None:
            local.fabric.clip_gradients(local.module, local.optimizer, max_norm=self.max_norm, error_if_nonfinite=False)


@dataclass(frozen=True)
class NoisyUpload(AddOn):
    """Protects each upload from the server, as ``DPFedAvg`` with noise at the clients asks."""

    noise: ClientNoise

    needs_average = False

    def finish(self, local: LocalContext, upload: State) -> Finished:
        """The clipped and noised upload."""
        return Finished(noised_upload(self.noise, upload, local.downloaded, derive_seed(local.seed, NOISE)))
