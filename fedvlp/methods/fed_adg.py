"""FedADG: all clients' features are pulled to one generated reference distribution per class.

Paper: Zhang et al., "Federated Learning with Domain Generalization", arXiv 2111.10487.

Symbols: h = sqrt(d) f(x) / |f(x)| feature of an image; y its class, 0.7 at its index among zeros; z noise, uniform in
[0, 1)^d; G distribution generator -> ``generator``; h' = sqrt(d) G(z, y) / |G(z, y)| reference feature; D discriminator
and R its projection -> ``discriminator``; lambda_0 -> ``class_weight``.
    discriminator  mean ((1 - D(R h', y))^2 + D(R h, y)^2)             :meth:`FedADG.losses`
    extractor      lambda_0 CE + (1 - lambda_0) mean (1 - D(R h, y))^2     as before
    generator      mean D(R h', y)^2                                       as before
    extractor and G are averaged, each client keeps its own D and R        :class:`.FedAvg`
So features are pulled to the references, and references to the features of all clients.

Deviations:
    * Source: fedvlp takes the losses, lambda_0 and y from the released script for PACS, because the paper was not
      available. The released script for VLCS has different losses and never updates its generator.
    * Steps: The released code steps one network after another by SGD, with 0.7 of the extractor's rate for D and G. In
      a round's first epochs, it trains only by cross-entropy; fedvlp takes all steps at once, with one optimizer and
      one rate.
    * Features: Features and references have the same length, because only the direction of CLIP's features matters.
      There is no ReLU.
    * Projection R: The released script divides it by its norm, but then draws it again with a norm of 45; fedvlp starts
      it with norm 1 and trains it.
    * Generator: The released code has 4,096 hidden units and 2,048 elements of z; fedvlp has 512 units, which match the
      0.52 M parameters that TRIP's authors count, and d elements. All clients start from the same weights.
    * Cross-entropy: The released code smooths labels by 0.01; fedvlp does not smooth them.
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

PROJECTED = 1024  # width of R h and of the discriminator's hidden layer
LABEL = 0.7  # value of the class's element in y


class FedADG(ImageTowerLearner):
    """CLIP's image tower, trained against a discriminator of its features and generated features of the same class.

    Args:
        class_weight: Share lambda_0 of the cross-entropy in the tower's loss, in (0, 1].
        generator_width: Number of units in the generator's hidden layer.
        options: Head, rates and optimizer, as in :class:`.ImageTowerLearner`.
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
        """Compute the losses of tower, discriminator and generator, each with a gradient only for its own network."""
        features = self.image_features(self.precomputed(inputs)["images"])
        classes = LABEL * F.one_hot(labels, len(self.class_names)).to(features.dtype)
        # Draw on the CPU, so that every device uses the same values.
        noise = torch.rand(features.shape).to(features.device, non_blocking=True)
        references = self.generator(torch.cat([noise, classes], dim=1))
        # Tower and generator give the discriminator no gradient.
        fixed = {name: value.detach() for name, value in self.discriminator.named_parameters()}
        cross_entropy = F.cross_entropy(self.logits(features), labels)
        alignment = (1 - functional_call(self.discriminator, fixed, (features, classes))).square().mean()
        generation = functional_call(self.discriminator, fixed, (references, classes)).square().mean()
        # The discriminator's loss gives features and references no gradient.
        reference_loss = (1 - self.discriminator(references.detach(), classes)).square()
        feature_loss = self.discriminator(features.detach(), classes).square()
        discrimination = (reference_loss + feature_loss).mean()
        extraction = self.class_weight * cross_entropy + (1 - self.class_weight) * alignment
        return {
            "cross_entropy": cross_entropy,
            "alignment": alignment,
            "discrimination": discrimination,
            "generation": generation,
            "loss": extraction + discrimination + generation,
        }


class Discriminator(nn.Module):
    """Discriminator of reference features (towards 1) and image features (towards 0) of the same class.

    Args:
        width: Feature width d.
        num_classes: Number of classes C.
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
        """Compute D in (0, 1) for features of any length and their classes."""
        # Scale to length sqrt(d), so that elements are of order 1.
        directions = F.normalize(features, dim=1) * features.shape[1] ** 0.5
        scores: Tensor = self.layers(torch.cat([self.projection(directions), classes], dim=1))
        return scores.squeeze(1).float()
