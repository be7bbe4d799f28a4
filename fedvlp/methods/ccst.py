"""CCST: each client also trains on its images in the styles of other clients, which the server forwards.

Paper: Chen et al., "Federated Domain Generalization for Image Recognition via Cross-Client Style Transfer", WACV 2023.

Symbols: F features of images inside the image tower; mu, sigma mean and standard deviation of channels; S_n overall
style of client n, 2 x W -> ``statistics.clients[n]``; B style bank, all S_n -> ``statistics.clients``; K -> ``styles``.
    S_n = (mu(F_all), sigma(F_all)) over all images of client n                :func:`.pooled`, :meth:`CCST.restyled`
    AdaIN(F, S) = sigma_S (F - mu(F)) / sigma(F) + mu_S                        :func:`.apply_style`
    each image in K styles of B, drawn without replacement; S_n: unchanged     :meth:`CCST.draw`
    CE over all of these                                                       :meth:`CCST.losses`

Deviations:
    * Style transfer: The paper stylises images with a VGG encoder and a decoder; fedvlp changes the statistics of
      features after ``stage`` of the image tower being trained. This needs no extra network and generates no image.
    * Time: The paper sends styles once, before training; fedvlp collects them during a round and sends them after it
      (:class:`.ClientStatistics`), so the first round is plain training.
    * Kinds of styles: The paper also has styles of single images; fedvlp has only overall styles, because styles of
      single images reveal more and improve only some data sets.
    * Standard deviation: The released code divides by N - 1 and adds 1e-5 under the root; fedvlp divides by N, and adds
      1e-5 only for an image's own style.
    * Draws: The paper draws an image's styles once; fedvlp draws them in each step, because styles change in each
      round. It uses all styles if fewer than K are known.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.protocols import Inputs
from fedvlp.methods.client_statistics import ClientStatistics, apply_style, compute_style, positions
from fedvlp.methods.image_tower import ImageTowerLearner, edit_stage
from fedvlp.utils.ranges import Names, PositiveInt


class CCST(ImageTowerLearner):
    """CLIP's image tower, trained on images in the styles of all clients.

    Args:
        styles: Number of styles K in which a step shows each image.
        stage: Stage of the image tower after which styles are measured and changed, from 1: a ViT's block, or one of
            the four stages of a ResNet or ConvNeXt.
        options: Head, rates and optimizer, as in :class:`.ImageTowerLearner`.
    """

    statistics: ClientStatistics

    def __init__(
        self,
        class_names: Names,
        num_clients: PositiveInt,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        styles: PositiveInt = 3,
        stage: PositiveInt = 1,
        **options: Any,
    ) -> None:
        super().__init__(class_names, clip, **options)
        self.styles = styles
        self.stage = stage
        self.share_statistics(num_clients, (2, self.num_channels(stage)))

    def draw(self, batch_size: int) -> Int[Tensor, "B K"]:
        """Draw K different slots of styles for each image; the client's own slot is among the candidates."""
        slots = torch.tensor([self.statistics.slot, *self.statistics.others])
        order = torch.rand(batch_size, len(slots)).argsort(dim=1)
        return slots[order[:, : self.styles]]

    def restyled(self, slots: Int[Tensor, "B K"], features: Tensor) -> Tensor:
        """Apply its K styles to K consecutive copies of each image, and add the batch to the client's statistics."""
        prefix = self.image_tower.num_prefix
        # The K copies of an image are identical up to this stage, so only the first counts.
        values = positions(features[:: slots.shape[1]].detach(), prefix).float()
        self.statistics.collect(values.flatten(0, 1), len(values))
        slots = slots.flatten().to(features.device, non_blocking=True)  # [B K]
        is_own = (slots == self.statistics.slot)[:, None, None]
        styles = torch.where(is_own, compute_style(features, prefix), self.statistics.clients[slots])
        return apply_style(features, styles, prefix)

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the cross-entropy of a batch with each image in K styles."""
        slots = self.draw(len(labels))
        images = self.precomputed(inputs)["images"].repeat_interleave(slots.shape[1], dim=0)
        features = self.image_features(images, edit_stage(self.stage, partial(self.restyled, slots)))
        return {"loss": F.cross_entropy(self.logits(features), labels.repeat_interleave(slots.shape[1]))}
