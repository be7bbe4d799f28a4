"""Classifiers in closed form: clients send moments of their image features, and the server computes the classifier.

Symbols: N images, n_c of them in class c; x image feature and t_c text feature of a class, unit vectors in d
dimensions; s logit scale (1 / tau); alpha -> ``text_weight``. Clients send, and the server averages by images,
    n_c / N                        ``moments.shares`` [C]
    1 / N sum_{i: y_i = c} x_i     ``moments.class_sums`` [C, d]
    1 / N sum_i x_i x_i^T          ``moments.gram`` [d, d], if a method needs it
    K / N                          ``moments.clients`` [1] with K clients, from which the server computes N
The averages are the moments of the pooled images. So, up to rounding, any partition of the same images gives the same
classifier. All entries are in [-1, 1]. The classifier is linear in x:
    p(c | x) = softmax_c(s <w_c, x>)    :meth:`ClosedForm.forward`; FedGDA adds b_c
Before the first round, w_c = t_c, which is zero-shot CLIP. The papers of Fed3R, FedCOF and FedNCM have no text
features, so ``text_weight: 0`` gives their classifiers; fedvlp adds text features, because the mixture is better on
source validation.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.clip import CLIP, CLIPSpec, zero_shot_text_features
from fedvlp.core.phases import Phase
from fedvlp.core.protocols import Batch, Inputs
from fedvlp.core.state import ClientUpdate, ServerState, State, detached, select, weighted_mean
from fedvlp.core.strategies import FedAvg, ServerComputed, Strategy
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.ranges import Names, NonNegativeFloat


class ClosedForm(PromptLearner):
    """Base class of linear classifiers of CLIP's image features, computed in one round without gradients.

    They classify only the classes they were computed for. A class that no client has keeps its text feature.

    Args:
        text_weight: Weight alpha of zero-shot CLIP's classifier in the mixture, at least 0; with 0, only images count.
    """

    image_statistics = ("moments",)
    needs_gram = False  # whether clients also send the second moments of all their features
    deployed: tuple[str, ...] = ("weight",)
    text_features: Tensor
    weight: Tensor

    def __init__(
        self, class_names: Names, clip: CLIPSpec | CLIP | str = "ViT-B-16", *, text_weight: NonNegativeFloat = 0.5
    ) -> None:
        super().__init__(class_names, clip)
        self.automatic_optimization = False
        self.text_weight = text_weight
        texts = zero_shot_text_features(self.clip, class_names)
        self.register_buffer("text_features", texts, persistent=False)
        self.register_buffer("weight", texts.clone())  # [C, d]
        classes, width = texts.shape
        self.moments: Any = nn.Module()  # holds buffers, which have no static types
        self.moments.register_buffer("clients", torch.zeros(1))
        self.moments.register_buffer("shares", torch.zeros(classes))
        self.moments.register_buffer("class_sums", torch.zeros(classes, width))
        if self.needs_gram:
            self.moments.register_buffer("gram", torch.zeros(width, width))

    @abstractmethod
    def classifier(self, moments: State) -> State:
        """Compute the ``deployed`` tensors from the pooled moments in float64; a class without images has share 0."""

    def moments_strategy(self) -> Strategy:
        """Average the moments and compute the classifier."""
        return ServerComputed(FedAvg(), self.server_classifier)

    def configure_phases(self) -> Sequence[Phase]:
        """Describe the only phase, in which clients pass through their images once."""
        names = ("moments",)
        # The moments are downloaded, too: differential privacy adds noise to the change from the download.
        strategy = self.moments_strategy()
        return (Phase("moments", (), names, strategy, download=names, deploy=self.deployed, one_pass=True),)

    def shared_state(self) -> State:
        """Collect the moments and the classifier, which only the server computes."""
        return super().shared_state() | detached(select(self.communicable_state(), self.deployed))

    def server_classifier(self, shared: State) -> State:
        """Compute the classifier's tensors from the server's moments."""
        moments = {name: shared[f"moments.{name}"].double() for name, _ in self.moments.named_buffers()}
        # Noise for differential privacy can move K / N out of its range (0, 1].
        moments["clients"] = moments["clients"].clamp(1e-9, 1)
        return {name: value.float() for name, value in self.classifier(moments).items()}

    def on_train_epoch_start(self) -> None:
        """Start the sums at zero."""
        for value in self.moments.buffers():
            value.zero_()
        self.moments.clients.fill_(1)

    @torch.no_grad()
    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Add a batch to the sums."""
        inputs, labels = batch
        features = F.normalize(self.precomputed(inputs)["features"].float(), dim=-1)
        one_hot = F.one_hot(labels, len(self.text_features)).to(features)
        with torch.autocast(features.device.type, enabled=False):
            self.moments.shares += one_hot.sum(0)
            self.moments.class_sums += one_hot.T @ features
            if self.needs_gram:
                self.moments.gram += features.T @ features

    def upload_state(self) -> State:
        """Divide the sums by the number of images."""
        images: Tensor = self.moments.shares.sum().clamp_min(1)
        return {name: value / images for name, value in super().upload_state().items()}

    def on_train_epoch_end(self) -> None:
        """Compute the classifier after the only pass of ``lightning.Trainer``."""
        images = self.moments.shares.sum().cpu()
        moments = {f"moments.{name}": value.cpu() / images for name, value in self.moments.named_buffers()}
        self.load_state(self.server_classifier(moments))

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits s <w_c, x>."""
        features = F.normalize(self.precomputed(inputs)["features"].float(), dim=-1)
        with torch.autocast(features.device.type, enabled=False):
            return self.clip.logit_scale * features @ self.weight.T

    def class_means(self, moments: State) -> Float[Tensor, "C d"]:
        """Compute the mean feature of each class, or the text feature of a class without images."""
        shares = moments["shares"][:, None]
        texts = self.text_features.double().cpu()
        means = torch.where(shares > 0, moments["class_sums"] / shares.clamp_min(1e-30), texts)
        # Means of unit vectors have a norm of at most 1, unless the shares are noisy.
        lengths: Tensor = means.norm(dim=-1, keepdim=True)
        return means / lengths.clamp_min(1)


class ClosedFormOfClients(ClosedForm):
    """Base class of classifiers for which the server needs each client's class sums, not only their sum."""

    def moments_strategy(self) -> Strategy:
        """Compute the classifier from the separate uploads."""
        return SeparateMoments(self)

    def classifier(self, moments: State) -> State:
        """Compute the classifier from the pooled moments, as if one client had all images."""
        images = 1 / moments["clients"]
        return self.classifier_from_clients(images * moments["shares"][None], images * moments["class_sums"][None])

    @abstractmethod
    def classifier_from_clients(self, counts: Float[Tensor, "K C"], sums: Float[Tensor, "K C d"]) -> State:
        """Compute the ``deployed`` tensors from each client's image counts and feature sums per class in float64."""


@dataclass(frozen=True)
class SeparateMoments(Strategy):
    """Average of the clients' moments, with the method's classifier computed from the separate class sums."""

    method: ClosedFormOfClients

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Compute the classifier from all uploads; without uploads, nothing changes."""
        if not updates:
            return server
        examples = [update.num_examples for update in updates]
        sizes = torch.tensor(examples, dtype=torch.float64)
        counts = sizes[:, None] * torch.stack([update.state["moments.shares"].double() for update in updates])
        sums = sizes[:, None, None] * torch.stack([update.state["moments.class_sums"].double() for update in updates])
        classifier = {name: value.float() for name, value in self.method.classifier_from_clients(counts, sums).items()}
        return server.updated(weighted_mean([update.state for update in updates], examples) | classifier)
