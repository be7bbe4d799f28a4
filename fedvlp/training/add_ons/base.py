"""Base class of add-ons: changes to a client's training that work with any method."""

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

# Separates a client's noise from the other random draws of its seed.
NOISE = 1


@dataclass(frozen=True)
class LocalContext:
    """One client's training in one phase, as seen by an add-on. The module holds the client's tensors.

    Attributes:
        optimizer: The client's optimizer, wrapped by Fabric; None if nothing is trainable.
        names: Trained tensors that are averaged over clients. Add-ons that correct updates correct only these.
        trained: All trained tensors by name. They are not copies.
        start: Copies of ``trained`` before the first step.
        downloaded: The tensors that the client downloaded for the method.
        received: The tensors from ``AddOn.download``, by name.
        memory: ``LocalResult.memory`` of the client's previous training in this phase; empty before the first.
        steps: Optimizer steps of this training, at least 1.
        proximal_weight: Sum of all add-ons' ``proximal_weight``.
        seed: Seed of the client's random draws in this phase and round.
        accuracy: Computes the accuracy of the client's current tensors on its validation images, in [0, 1]; with
            several labels per image, the share of labels predicted correctly.
        loss: Computes the mean cross-entropy of the client's current tensors on its training images.
        scratch: The add-on's own tensors during this training; empty at its start.
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
    memory: State
    steps: int
    proximal_weight: float
    seed: int
    accuracy: Callable[[], float]
    loss: Callable[[], float]
    scratch: State = field(default_factory=dict)

    @property
    def averaged(self) -> State:
        """The averaged tensors w_t before the first step."""
        return {name: self.start[name] for name in self.names}


class LocalResult(NamedTuple):
    """Result of an add-on at the end of a client's training.

    Attributes:
        upload: The client's upload for the method.
        sent: The client's upload for the add-on, with the same names and shapes for all clients.
        memory: Tensors that stay on the client for its next training in this phase.
    """

    upload: State
    sent: Mapping[str, Tensor] = {}
    memory: Mapping[str, Tensor] = {}


@dataclass(frozen=True)
class ServerRound:
    """The uploads of a phase before the server combines them.

    Attributes:
        updates: Updates of the cohort, at least one, without the tensors of add-ons.
        sent: ``LocalResult.sent`` of each update's client.
        shared: The tensors that the clients started from.
        memory: The add-on's memory on the server after the previous round of this phase; empty before the first.
        names: The averaged tensors.
        weights: Each client's weight in averages, by client id: its number of images, or 1 for uniform weights.
        round: Number of finished rounds.
        rounds: Total number of rounds.
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
    """A change to local training. Subclasses are frozen dataclasses that override the hooks they need.

    Hooks are called in the order of their definition. They have no side effects: state for later rounds is part of
    their return values and of every checkpoint.

    Attributes:
        needs_average: Whether it is active only in phases that average the clients' parameters.
        needs_accuracy: Whether it evaluates clients on their own validation images.
        needs_gradients: Whether it needs gradients that are neither scaled nor clipped.
        needs_rounds: Whether it depends on the total number of rounds.
        sets_weights: Whether it sets the clients' weights in averages.
    """

    needs_average: ClassVar[bool] = True
    needs_accuracy: ClassVar[bool] = False
    needs_gradients: ClassVar[bool] = False
    needs_rounds: ClassVar[bool] = False
    sets_weights: ClassVar[bool] = False

    @property
    def proximal_weight(self) -> float:
        """The weight mu, at least 0, if ``loss`` contains mu / 2 |w - w_t|^2. Other add-ons may use it."""
        return 0.0

    def download(self, memory: State, shared: State) -> State:
        """Make the add-on's tensors for clients to download, from its server memory and the averaged tensors."""
        return {}

    def begin(self, local: LocalContext) -> None:
        """Prepare the training before its first step, e.g. fill ``local.scratch``."""

    def loss(self, local: LocalContext, inputs: Inputs) -> Tensor | None:
        """Compute a term to add to the loss of each step; None for no term."""
        return None

    def after_backward(self, local: LocalContext) -> None:
        """Read or change the gradients of each step before the optimizer uses them."""

    def finish(self, local: LocalContext, upload: State) -> LocalResult:
        """Make the client's upload and memory after its last step, from the method's ``upload``, copies on the CPU."""
        return LocalResult(upload)

    def upload_template(self, averaged: State) -> State:
        """Make tensors with the names, shapes and types of ``LocalResult.sent``, given the averaged tensors."""
        return {}

    def before_aggregation(self, server: ServerRound) -> tuple[Sequence[ClientUpdate], State]:
        """Change the updates before the server combines them; return them and the add-on's server memory."""
        return server.updates, {}

    def after_aggregation(self, server: ServerRound, combined: State) -> tuple[State, State]:
        """Change the combined tensors ``server.names``; return them and the add-on's server memory."""
        return combined, {}


def squared_distance(trained: Mapping[str, Tensor], start: State) -> Tensor:
    """Compute the squared Euclidean distance |w - w_t|^2 of trained tensors from their start."""
    # Stacked, because Python's sum starts with an integer that would be moved to the device.
    return torch.stack([(trained[name] - value).square().sum() for name, value in start.items()]).sum()


@dataclass(frozen=True)
class ClipGradients(AddOn):
    """Clipping of the joint gradient norm of all trained tensors, like Lightning's ``gradient_clip_val``."""

    max_norm: PositiveFloat

    needs_average = False

    def after_backward(self, local: LocalContext) -> None:
        """Clip the gradient. A gradient that is not finite stays so, and the server rejects the update."""
        if local.optimizer is not None:
            local.fabric.clip_gradients(local.module, local.optimizer, max_norm=self.max_norm, error_if_nonfinite=False)


@dataclass(frozen=True)
class NoisyUpload(AddOn):
    """Noise on each upload before it leaves the client, for ``DPFedAvg`` with noise at the clients."""

    noise: ClientNoise

    needs_average = False

    def finish(self, local: LocalContext, upload: State) -> LocalResult:
        """Clip the upload and add noise."""
        return LocalResult(noised_upload(self.noise, upload, local.downloaded, derive_seed(local.seed, NOISE)))
