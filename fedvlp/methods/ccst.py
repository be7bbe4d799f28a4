"""CCST: each client trains on its images in the styles of the other clients as well, which the server passes on.

Paper: Chen et al., "Federated Domain Generalization for Image Recognition via Cross-Client Style Transfer", WACV 2023.

Symbols: F features of images inside the image tower; mu, sigma mean and deviation of their channels; S_n overall style
of client n, 2 x W -> ``statistics.clients[n]``; B style bank, all S_n -> ``statistics.clients``; K -> ``styles``.
    S_n = (mu(F_all), sigma(F_all)) over all images of client n                :func:`.pooled`, :meth:`CCST.collect`
    AdaIN(F, S) = sigma_S (F - mu(F)) / sigma(F) + mu_S                        :func:`.with_style`
    each image in K styles of B, drawn without replacement; for S_n as it was  :meth:`CCST.draw`
    CE over all of these                                                       :meth:`CCST.training_step`

Departures:
    * The paper takes features of a VGG and makes images of them again by a decoder, both trained for that elsewhere.
      Here features are those of the image tower that is trained, behind its stage ``stage``, and go on through the
      tower: nothing but CLIP is needed, no image is made, and styles follow the tower.
    * A style is of a client's images as its training saw them in a round, and is sent after it; see
      :class:`.ClientStatistics`. The paper sends it once, before all rounds; here the first round is plain training.
    * The overall style alone. The paper's other kind, styles of single images, is somewhat better or worse by data set
      there, and tells more of them.
    * Where fewer than K styles are known, all are taken.
    * The styles of an image are drawn anew in each step; the paper draws once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.protocols import Batch
from fedvlp.core.state import State
from fedvlp.methods.client_statistics import (
    ClientStatistics,
    after_stage,
    num_channels,
    own_slot,
    pooled,
    positions,
    style_of,
    with_style,
)
from fedvlp.methods.image_tower import Head, ImageTowerLearner
from fedvlp.utils.ranges import FractionAboveZero, Names, PositiveInt


class CCST(ImageTowerLearner):
    """Trains CLIP's image tower on images in the styles of all clients.

    Args:
        class_names: The classes, in the order of the labels.
        num_clients: Number of all clients; the command line takes it from the data.
        clip: The CLIP that is trained: see ``load_clip``; the one passed in stays unchanged.
        styles: K, in how many styles each image is seen in a step.
        stage: The stage of the image tower behind which styles are taken and changed, from 1: a ViT's block, or one of
            a ResNet's four stages.
        head: What classifies: CLIP's text features (``text``), or a linear layer that starts from them (``linear``).
        layer_decay: Factor on the learning rate from each layer of the tower to the one below it, in (0, 1].
        optimizer: Makes the optimizer of a client's local training. Vectors, such as biases, get no weight decay.

    Raises:
        UserError: If the tower has fewer stages, or none that can be run one by one.
    """

    train_only_personal = ClientStatistics.personal
    shares_of_images = ClientStatistics.sent

    def __init__(
        self,
        class_names: Names,
        num_clients: PositiveInt,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        styles: PositiveInt = 3,
        stage: PositiveInt = 1,
        head: Head = "text",
        layer_decay: FractionAboveZero = 0.7,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=3e-5, weight_decay=0.1),
    ) -> None:
        super().__init__(class_names, clip, head, "frozen", layer_decay, optimizer)
        self.styles = styles
        self.stage = stage
        self.statistics = ClientStatistics(num_clients, (2, num_channels(self, stage)))

    def configure_phases(self) -> Sequence[Phase]:
        """Returns two phases: train all and average it; send what was collected, which is not deployed."""
        (train,) = super().configure_phases()
        return self.statistics.phases(train)

    def start_client(self, context: RoundContext) -> None:
        """Prepares for a client's phase; before training it forgets what it had collected in the round before."""
        super().start_client(context)
        if context.phase.train:
            self.statistics.clear()

    def upload_state(self) -> State:
        """Returns what the client sends after the running phase: its own statistics after the second."""
        statistics = self.statistics.upload(self.context)
        return super().upload_state() if statistics is None else statistics

    def draw(self, batch_size: int) -> Int[Tensor, "B K"]:
        """Returns the slots of each image's K styles, all different; the client's own is among those drawn from."""
        slots = torch.tensor([own_slot(self.context), *self.statistics.others(self.context)])
        order = torch.rand(batch_size, len(slots)).argsort(dim=1)
        return slots[order[:, : self.styles]]

    def restyled(self, slots: Int[Tensor, "B K"], features: Tensor) -> Tensor:
        """Returns features, of each image K one after another, in its K styles, and adds the batch to the client's."""
        self.collect(features[:: slots.shape[1]])
        slots = slots.flatten().to(features.device)
        style = torch.where(
            (slots == own_slot(self.context))[:, None, None], style_of(features), self.statistics.clients[slots]
        )
        return with_style(features, style)

    def collect(self, features: Tensor) -> None:
        """Adds a batch to the client's overall means and variances."""
        values = positions(features.detach()).float().flatten(0, 1)  # [B N, W]
        seen = self.statistics.images_seen + len(features)
        self.statistics.own.copy_(pooled(self.statistics.own, values, len(features) / seen))
        self.statistics.images_seen.copy_(seen)

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Returns the cross-entropy of a batch, each image in K styles."""
        inputs, labels = batch
        slots = self.draw(len(labels))
        images = self.precomputed(inputs)["images"].repeat_interleave(slots.shape[1], dim=0)
        features = self.image_features(images, after_stage(self.stage, partial(self.restyled, slots)))
        loss = F.cross_entropy(self.logits(features), labels.repeat_interleave(slots.shape[1]))
        self.log("loss", loss)
        return loss
