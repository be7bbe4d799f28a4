"""FedADG: all clients' features are drawn to one reference distribution of each class, which a network generates.

Paper: Zhang et al., "Federated Learning with Domain Generalization", arXiv 2111.10487.

Symbols: h = sqrt(d) f(x) / |f(x)| feature of an image; y its class, one-hot; z noise, uniform in [0, 1)^d; G
distribution generator -> ``generator``; h' = sqrt(d) G(z, y) / |G(z, y)| reference feature; D discriminator ->
``discriminator``; R random projection -> ``projection``; lambda_0 -> ``class_weight``.
    extractor      lambda_0 CE + (1 - lambda_0) mean (1 - D(R h, y))^2     :meth:`FedADG.training_step`
    discriminator  -mean (D(R h', y)^2 + (1 - D(R h, y))^2)                 as before
    generator      mean (1 - D(R h', y))^2                                  as before
    extractor and G are averaged, each client keeps its own D              :class:`.FedAvg`

Departures:
    * The three losses are of the code that was released, as others carry it on; the paper itself was not at hand. There
      a copy of the features cuts the generator off from its loss, so that it never moves; here it is trained.
    * All three take their step at the same time, each on the gradient of its own loss, and under one optimizer. The
      released code takes one after another, by SGD, and trains by cross-entropy alone in the first epochs of a round.
    * Features and references have one length, since only the direction of CLIP's features counts, and no ReLU.
    * The generator's hidden layer has 512 units, which fits the 0.52 M parameters that TRIP's authors count for it; the
      released one has 4,096. Labels are 1 and not 0.6, and cross-entropy is not smoothed.
    * R is fixed, made from a seed by all alike; the released code trains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.protocols import Batch
from fedvlp.methods.image_tower import ImageTowerLearner
from fedvlp.utils.ranges import FractionAboveZero, Names, PositiveInt

PROJECTED = 1024
"""Size of R h, and of the discriminator's hidden layer."""


class FedADG(ImageTowerLearner):
    """Trains CLIP's image tower against a discriminator that tells its features from generated ones of the class.

    Args:
        class_weight: lambda_0, the share of the cross-entropy in the tower's loss, in (0, 1].
        generator_width: Units of the generator's hidden layer.
        options: Head, rates and optimizer, as of :class:`.ImageTowerLearner`.
    """

    train_only_personal = ("discriminator",)
    projection: Tensor  # [1024, d]

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        class_weight: FractionAboveZero = 0.55,
        generator_width: PositiveInt = 512,
        **options: Any,
    ) -> None:
        super().__init__(class_names, clip, **options)
        self.class_weight = class_weight
        width = self.clip.embed_dim
        labelled = width + len(class_names)
        self.generator = nn.Sequential(
            nn.Linear(labelled, generator_width), nn.LeakyReLU(), nn.Linear(generator_width, width)
        )
        self.discriminator = nn.Sequential(
            nn.Linear(PROJECTED + len(class_names), PROJECTED), nn.LeakyReLU(), nn.Linear(PROJECTED, 1), nn.Sigmoid()
        )
        drawn = torch.randn(PROJECTED, width, generator=torch.Generator().manual_seed(0)) / width**0.5
        self.register_buffer("projection", drawn, persistent=False)

    def scores(
        self, weights: Mapping[str, Tensor], features: Float[Tensor, "B d"], classes: Float[Tensor, "B C"]
    ) -> Float[Tensor, "B"]:
        """Returns D of features and one-hot classes, in (0, 1), under some weights; near 1 for references."""
        # Of length sqrt(d), so that their numbers are of order 1.
        directions = F.normalize(features, dim=1) * features.shape[1] ** 0.5
        projected = directions @ self.projection.T
        scores: Tensor = functional_call(self.discriminator, dict(weights), (torch.cat([projected, classes], dim=1),))
        return scores.squeeze(1).float()

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Returns the losses of tower, discriminator and generator, each with a gradient to its own network alone."""
        inputs, labels = batch
        features = self.image_features(self.precomputed(inputs)["images"])
        classes = F.one_hot(labels, len(self.class_names)).to(features.dtype)
        # Drawn on the CPU, so that every device sees the same numbers.
        noise = torch.rand(features.shape).to(features.device)
        references = self.generator(torch.cat([noise, classes], dim=1))
        learning = dict(self.discriminator.named_parameters())
        # Tower and generator are judged by a discriminator that gets no gradient from them.
        fixed = {name: value.detach() for name, value in learning.items()}
        cross_entropy = F.cross_entropy(self.logits(features), labels)
        alignment = (1 - self.scores(fixed, features, classes)).square().mean()
        generation = (1 - self.scores(fixed, references, classes)).square().mean()
        # And the discriminator learns from features that get no gradient from it.
        known = self.scores(learning, references.detach(), classes).square()
        foreign = (1 - self.scores(learning, features.detach(), classes)).square()
        discrimination = -(known + foreign).mean()
        loss = self.class_weight * cross_entropy + (1 - self.class_weight) * alignment + discrimination + generation
        self.log_dict({"cross_entropy": cross_entropy, "alignment": alignment, "discrimination": discrimination})
        self.log_dict({"generation": generation, "loss": loss})
        return loss
