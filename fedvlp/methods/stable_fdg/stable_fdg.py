"""StableFDG: features take on styles of other clients and unseen ones, and what a class's images share is highlighted.

Paper: Park et al., "StableFDG: Style and Attention Based Learning for Federated Domain Generalization", NeurIPS 2023.

Symbols: s = (mu, sigma), 2 x W, style of an image's features; Phi_n mean and deviation of s over the images of client n
-> ``statistics[n]`` [2, 2, W]; alpha -> ``exploration``; x_p features of position p behind the last stage.
    Phi_n = (mean(s), deviation(s)) over the client's images                           :meth:`StableFDG.collect`
    half of a batch, the seeds of k-means++ over s, keeps its styles; s ~ Phi_m for the others, m another client
                                                                                       :meth:`StableFDG.shifted`
    s' = s + alpha (s - mean(s)) for images of a batch seen once more, rare classes first  :func:`.explored`
    s <- lambda s_i + (1 - lambda) s_j, lambda ~ Beta(0.1, 0.1)                        :func:`.mixed`
    a_p, from queries of an image and another of its class; h = sum_p a_p x_p          :class:`.FeatureHighlighter`
    CE over all of these                                                               :meth:`StableFDG.training_step`

Departures:
    * The paper's network is a ResNet-18 whose mean feature and h stand side by side before one linear classifier. Here
      the former's part of the classifier is CLIP's text features, and h adds a part of its own, which starts at 0.
    * Styles are shifted and explored behind one stage, each with probability 1/2 in a step; the released code explores
      behind each of three, each time with that probability. The doubled images run through the stages below, too.
    * Phi is that of a client's images as its training saw them in a round; see :class:`.StatisticsSharer`. The released
      code computes it beforehand. Another client m is drawn in each step, and not once a round.
    * An image alone of its class is its own partner, and is doubled like others; the released code takes one more
      batch, with an image of each class, to pair and double it.
    * Styles are kept as they are for the seeds of k-means++. The released code gives its first images, in their order,
      the means of clusters around these seeds.
    * AdamW and its rates are those of fine-tuning; the paper has SGD 0.001.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.clip.towers.blocks import Between
from fedvlp.core.protocols import Batch, Inputs
from fedvlp.methods._shared.statistics_sharer import StatisticsSharer
from fedvlp.methods._shared.styles import after_stage, num_channels, pooled, positions, style_of, with_style
from fedvlp.methods.stable_fdg.draws import diverse, explored, mixed, oversampled
from fedvlp.methods.stable_fdg.highlighter import FeatureHighlighter, partners_of
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import FractionAboveZero, Names, NonNegativeFloat, PositiveInt


class StableFDG(StatisticsSharer):
    """Trains CLIP's image tower in styles of other clients and beyond, and an attention over an image's positions.

    Args:
        class_names: The classes, in the order of the labels.
        num_clients: Number of all clients; the command line takes it from the data.
        clip: The CLIP that is trained: a name, name and weights, or one that was loaded before, which stays as it is.
        exploration: alpha, how far styles are led away from their mean, at least 0.
        stage: The stage of the image tower behind which styles are taken and changed, from 1: a ViT's block, or one of
            a ResNet's four stages.
        layer_decay: Factor on the learning rate from each layer of the tower to the one below it, in (0, 1].
        optimizer: Makes the optimizer of a client's local training. Vectors, such as biases, get no weight decay.

    Raises:
        UserError: If the tower has no stage behind that one, or none that can be run one by one.
    """

    def __init__(
        self,
        class_names: Names,
        num_clients: PositiveInt,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        exploration: NonNegativeFloat = 3.0,
        stage: PositiveInt = 1,
        layer_decay: FractionAboveZero = 0.7,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=3e-5, weight_decay=0.1),
    ) -> None:
        super().__init__(class_names, clip, "text", layer_decay, optimizer)
        self.save_hyperparameters()
        self.exploration = exploration
        self.stage = stage
        blocks = self.image_tower.blocks
        self.last_stage = 4 if blocks is None else len(blocks)
        if stage >= self.last_stage:
            raise UserError(f"Styles are changed before the last of the tower's {self.last_stage} stages. Lower stage.")
        self.highlighter = FeatureHighlighter(num_channels(self, self.last_stage), len(class_names))
        self.keep_statistics(num_clients, (2, 2, num_channels(self, stage)))

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Returns the logits of a batch, in which each image is its own partner."""
        images = self.constants(inputs)["images"]
        return self.logits_of(images, torch.arange(images.shape[0], device=images.device), [])

    def logits_of(
        self, images: Float[Tensor, "B 3 V V"], partners: Int[Tensor, "B"], between: list[Between]
    ) -> Float[Tensor, "B C"]:
        """Returns the logits by the joint features, plus those by the highlighted features of the last stage."""
        last: list[Tensor] = []

        def keep(features: Tensor) -> Tensor:
            last.append(positions(features))
            return features

        changes = [*between, *after_stage(self.last_stage - len(between), keep)]
        joint = self.image_features(images, changes)
        highlighted: Tensor = self.highlighter(last[0], partners)
        return self.logits(joint) + highlighted

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Returns the cross-entropy of a batch in other styles and, every second time, of some of its images again."""
        inputs, labels = batch
        images = self.constants(inputs)["images"]
        explores, shifts = (torch.rand(2) < 0.5).tolist()
        extra = oversampled(labels, len(labels) if explores else 0)
        every = torch.cat([torch.arange(len(labels)), extra]).to(labels.device)
        change = partial(self.restyled, len(labels), extra, shifts)
        logits = self.logits_of(images[every], partners_of(labels[every]), [*after_stage(self.stage, change)])
        loss = F.cross_entropy(logits, labels[every])
        self.log("loss", loss)
        return loss

    def restyled(self, batch_size: int, extra: Int[Tensor, "E"], shifts: bool, features: Tensor) -> Tensor:
        """Returns features of a batch, and of some of its images again, in the styles that are drawn for them."""
        style = style_of(features[:batch_size])
        self.collect(style)
        if shifts:
            style = self.shifted(style)
        if len(extra):
            style = mixed(explored(style, extra, self.exploration))
        return with_style(features, style)

    def shifted(self, style: Float[Tensor, "B 2 W"]) -> Float[Tensor, "B 2 W"]:
        """Returns styles, of which half are another client's, drawn; as they are if no other's are known."""
        others = self.others()
        if not others:
            return style
        mean, deviation = self.statistics[others[int(torch.randint(len(others), ()))]]
        drawn = mean + deviation * torch.randn(style.shape).to(style.device)
        drawn = torch.stack([drawn[:, 0], drawn[:, 1].clamp_min(0)], dim=1)
        kept = diverse(style.flatten(1), (len(style) + 1) // 2).to(style.device)
        return drawn.index_copy(0, kept, style[kept])

    def collect(self, style: Float[Tensor, "B 2 W"]) -> None:
        """Adds a batch to the mean and the deviation of the client's styles."""
        seen = self.images_seen + len(style)
        known = pooled(self.own_statistics.flatten(1), style.flatten(1), len(style) / seen)
        self.own_statistics.copy_(known.view_as(self.own_statistics))
        self.images_seen.copy_(seen)
