"""HCVP: two generated prompts per image, at the domain and the task level, and a trained image tower.

Paper: Zhou et al., "HCVP: Leveraging Hierarchical Contrastive Visual Prompt for Domain Generalization", IEEE TMM 2024,
arXiv 2401.09716. A centralised method.

Symbols: m(x) mean of a frozen encoder's feature map -> ``means`` [B, W]; p_d domain-level prompt, p_t task-specific
prompt -> :meth:`HCVP.generated`; M modulation network -> ``modulation``; f feature; y class, d domain of an image;
tau -> ``temperature``; lambda -> ``domain_weight``, ``task_weight``, ``class_weight``.
    p_d = G_d m(x),  p_t = G_t [m(x); p_d]           hierarchical prompt generation network
    inputs of block 1: p_d, p_t; of block j > 1: M(p_d), M(p_t)    prompt modulation network
    C(z, P) = -mean_i log sum_{j in P_i} e^{cos(z_i, z_j) / tau} / sum_{j != i} e^{cos(z_i, z_j) / tau}
                                                     :func:`contrastive_loss`
    CE + lambda_d C(p_d, same d) + lambda_t C(p_t, same d and y)    prompt contrastive learning
       + lambda_c C(f, same y)                       class-conditional contrastive invariance
Classification needs no domain label.

Deviations:
    * Network: The paper trains an ImageNet ViT and a linear layer; fedvlp trains CLIP's image tower with CLIP's text
      features, as fine-tuning does.
    * Feature map: The released code takes a ResNet-50's; fedvlp takes the patches after the last block of the frozen
      CLIP. The released G_t averages a 1 x 1 convolution over the map, which equals a linear layer of the average.
    * M: The released code has three versions; fedvlp takes the "simple" one, a single linear layer for both prompts and
      all blocks.
    * Contrast: The released code counts an image without a partner in P, with 1e-7 as the numerator; fedvlp omits such
      images from the mean.
    * Values: The released weights are 0, and the paper's were searched; fedvlp uses weights 0.1, tau 1 and no dropout.
    * Position and batches: Prompts pass CLIP's first normalisation; batches come from the pool of all domains.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.protocols import Inputs
from fedvlp.methods.image_tower import ImageTowerLearner, prompted_features
from fedvlp.methods.prompts import image_domains
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveFloat


class HCVP(ImageTowerLearner):
    """CLIP's image tower, trained with two generated prompts per image.

    Args:
        domain_weight: Weight of the contrastive loss that separates domain-level prompts by domain, at least 0.
        task_weight: Weight of the contrastive loss that separates task prompts by domain and class, at least 0.
        class_weight: Weight of the contrastive loss that pulls features of a class together, at least 0.
        temperature: Temperature tau of the three losses.
    """

    needs_domains = True

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        domain_weight: NonNegativeFloat = 0.1,
        task_weight: NonNegativeFloat = 0.1,
        class_weight: NonNegativeFloat = 0.1,
        temperature: PositiveFloat = 1.0,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=5e-6, weight_decay=0.01),
    ) -> None:
        super().__init__(class_names, clip, layer_decay=1.0, optimizer=optimizer)
        self.width = self.image_tower.require_prompts().width  # token width W; an error if the tower accepts no prompts
        self.weights = {"domain_prompts": domain_weight, "task_prompts": task_weight, "classes": class_weight}
        self.temperature = temperature
        self.domain_generator = nn.Linear(self.width, self.width)
        self.task_generator = nn.Linear(2 * self.width, self.width)
        self.modulation = nn.Linear(self.width, self.width)

    def generated(self, images: Float[Tensor, "B 3 V V"]) -> tuple[Float[Tensor, "B W"], Float[Tensor, "B W"]]:
        """Compute the domain-level and the task-specific prompt of each image."""
        with torch.no_grad():
            tokens = self.clip.image.encode(images)[1]
            means = tokens[:, self.clip.image.num_prefix :].mean(1).float()  # over the patches only
        domain = self.domain_generator(means)
        return domain, self.task_generator(torch.cat([means, domain], dim=1))

    def features(
        self, images: Float[Tensor, "B 3 V V"], domain: Float[Tensor, "B W"], task: Float[Tensor, "B W"]
    ) -> Float[Tensor, "B d"]:
        """Compute the joint image features under these prompts, not normalised."""
        tower = self.image_tower.require_prompts()
        first = torch.stack([domain, task], dim=1)  # [B, 2, W]
        # All blocks but the first share one modulation of the two prompts.
        deeper = self.modulation(first)
        return prompted_features(tower, images, [first, *[deeper] * (len(tower.blocks) - 1)])

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits of a batch, without domain labels."""
        images = self.precomputed(inputs)["images"]
        return self.logits(self.features(images, *self.generated(images)))

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the cross-entropy and the three contrastive losses."""
        domains = image_domains(inputs, "HCVP")
        images = self.precomputed(inputs)["images"]
        domain, task = self.generated(images)
        features = self.features(images, domain, task)
        # Pairs of a batch: [B, B].
        same_domain = domains[:, None] == domains
        same_class = labels[:, None] == labels
        contrastive = {
            "domain_prompts": (domain, same_domain),
            "task_prompts": (task, same_domain & same_class),
            "classes": (features, same_class),
        }
        losses = {"cross_entropy": F.cross_entropy(self.logits(features), labels)}
        for name, (vectors, positives) in contrastive.items():
            losses[name] = self.weights[name] * contrastive_loss(vectors, positives, self.temperature)
        return {**losses, "loss": torch.stack(list(losses.values())).sum()}


def contrastive_loss(
    vectors: Float[Tensor, "B W"], positives: Bool[Tensor, "B B"], temperature: float
) -> Float[Tensor, ""]:
    """Compute the mean over vectors of -log(summed similarity to positives / summed similarity to all others).

    Only directions count, and no vector is compared with itself. Vectors without another positive are ignored; if all
    are ignored, the loss is 0.

    >>> vectors = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    >>> positives = torch.tensor([[True, True, False], [True, True, False], [False, False, True]])
    >>> round(contrastive_loss(vectors, positives, 1.0).item(), 4)  # log(1 + e^-1)
    0.3133
    """
    directions = F.normalize(vectors.float(), dim=-1)
    # Exclude a vector's similarity to itself, which is the largest.
    others = ~torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    similarity = directions @ directions.T / temperature
    to_all = similarity.masked_fill(~others, -torch.inf).logsumexp(1)
    # Indices instead of a mask: a GPU would wait at each use of a mask.
    chosen = (positives & others).any(1).nonzero().flatten()
    to_positives = similarity[chosen].masked_fill(~(positives & others)[chosen], -torch.inf).logsumexp(1)
    return (to_all[chosen] - to_positives).sum() / max(1, len(chosen))
