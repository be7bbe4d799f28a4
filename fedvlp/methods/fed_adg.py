"""FedADG: all clients' features are drawn to one reference distribution of each class, which a network generates.

Paper: Zhang et al., "Federated Learning with Domain Generalization", arXiv 2111.10487.

Symbols: h = sqrt(d) f(x) / |f(x)| feature of an image; y its class, 0.7 at its place among zeros; z noise, uniform in
[0, 1)^d; G distribution generator -> ``generator``; h' = sqrt(d) G(z, y) / |G(z, y)| reference feature; D discriminator
and R its projection -> ``discriminator``; lambda_0 -> ``class_weight``.
    discriminator  mean ((1 - D(R h', y))^2 + D(R h, y)^2)             :meth:`FedADG.losses`
    extractor      lambda_0 CE + (1 - lambda_0) mean (1 - D(R h, y))^2     as before
    generator      mean D(R h', y)^2                                       as before
    extractor and G are averaged, each client keeps its own D and R        :class:`.FedAvg`
So features are drawn to the references, and references to the features of all clients.

Departures:
    * Source: losses, lambda_0 and y are those of the authors' script for PACS; the paper itself was not available.
      Their script for VLCS has other losses, and its generator never moves.
    * Steps: the released code steps one network after another by SGD, with 0.7 of the extractor's rate for D and G, and
      trains by cross-entropy alone in a round's first epochs; fedvlp takes all steps at once, under one optimizer and
      one rate.
    * Features: features and references have the same length, because only the direction of CLIP's features counts, and
      no ReLU.
    * R: it starts with norm 1 and is trained. The released script divides by the norm, too, but then draws R again,
      with a norm of 45.
    * Generator: 512 hidden units fit the 0.52 M parameters that TRIP's authors count, and z has d elements; the
      released code has 4,096 and 2,048. All clients start from the same weights.
    * Cross-entropy: not smoothed; the released code smooths it by 0.01.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.protocols import Inputs
from fedvlp.methods.image_tower import ImageTowerLearner
from fedvlp.utils.ranges import FractionAboveZero, Names, PositiveInt

PROJECTED = 1024
"""Size of R h, and of the discriminator's hidden layer."""

LABEL = 0.7
"""What stands for the class in y."""


class FedADG(ImageTowerLearner):
    """Trains CLIP's image tower against a discriminator that tells its features from generated ones of the class.

    Args:
        class_weight: lambda_0, the share of the cross-entropy in the tower's loss, in (0, 1].
        generator_width: Units of the generator's hidden layer.
        options: Head, rates and optimizer, as of :class:`.ImageTowerLearner`.
    """

    train_only_personal = ("discriminator",)

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        class_weight: FractionAboveZero = 0.85,
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
        self.discriminator = Discriminator(width, len(class_names))

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the losses of tower, discriminator and generator, each with a gradient to its own network alone."""
        features = self.image_features(self.precomputed(inputs)["images"])
        classes = LABEL * F.one_hot(labels, len(self.class_names)).to(features.dtype)
        # Drawn on the CPU, so that every device sees the same numbers.
        noise = torch.rand(features.shape).to(features.device, non_blocking=True)
        references = self.generator(torch.cat([noise, classes], dim=1))
        # Tower and generator are judged by a discriminator that gets no gradient from them.
        fixed = {name: value.detach() for name, value in self.discriminator.named_parameters()}
        cross_entropy = F.cross_entropy(self.logits(features), labels)
        alignment = (1 - functional_call(self.discriminator, fixed, (features, classes))).square().mean()
        generation = functional_call(self.discriminator, fixed, (references, classes)).square().mean()
        # And the discriminator learns from features and references that get no gradient from it.
        of_references = (1 - self.discriminator(references.detach(), classes)).square()
        of_features = self.discriminator(features.detach(), classes).square()
        discrimination = (of_references + of_features).mean()
        extraction = self.class_weight * cross_entropy + (1 - self.class_weight) * alignment
        return {
            "cross_entropy": cross_entropy,
            "alignment": alignment,
            "discrimination": discrimination,
            "generation": generation,
            "loss": extraction + discrimination + generation,
        }


class Discriminator(nn.Module):
    """Tells reference features, near 1, from those of images, near 0, of the same class.

    Args:
        width: d, size of a feature.
        num_classes: C.
    """

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.projection = nn.Linear(width, PROJECTED, bias=False)
        with torch.no_grad():
            self.projection.weight.div_(self.projection.weight.norm())
        self.layers = nn.Sequential(
            nn.Linear(PROJECTED + num_classes, PROJECTED), nn.LeakyReLU(), nn.Linear(PROJECTED, 1), nn.Sigmoid()
        )

    def forward(self, features: Float[Tensor, "B d"], classes: Float[Tensor, "B C"]) -> Float[Tensor, "B"]:
        """Compute D of features of any length and their classes, in (0, 1)."""
        # Of length sqrt(d), so that their numbers are of order 1.
        directions = F.normalize(features, dim=1) * features.shape[1] ** 0.5
        scores: Tensor = self.layers(torch.cat([self.projection(directions), classes], dim=1))
        return scores.squeeze(1).float()
