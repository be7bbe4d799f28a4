"""StableFDG: features in other clients' styles and in new ones, with attention to what a class's images have in common.

Paper: Park et al., "StableFDG: Style and Attention Based Learning for Federated Domain Generalization", NeurIPS 2023.

Symbols: s = (mu, sigma), 2 x W, style of an image's features; Phi_n mean and standard deviation of s over client n's
images -> ``statistics.clients[n]`` [2, 2, W]; alpha -> ``exploration``; x_p feature at position p after the last stage.
    Phi_n = (mean(s), std(s)) over the client's images                                 :func:`.pooled`
    half of a batch, the seeds of k-means++ over s, keeps its styles; s ~ Phi_m for the others, m another client
                                                                                       :meth:`StableFDG.shifted`
    s' = s + alpha (s - mean(s)) for repeated images of a batch, rare classes first    :func:`.explored`
    s <- lambda s_i + (1 - lambda) s_j, lambda ~ Beta(0.1, 0.1)                        :func:`.mixed`
    a_p, from queries of an image and another of its class; h = sum_p a_p x_p          :class:`.FeatureHighlighter`
    CE over all of these                                                               :meth:`StableFDG.losses`

Deviations:
    * Classifier: In the paper, the mean feature of a ResNet-18 and h enter one linear layer; fedvlp adds a linear layer
      of h, which starts at 0, to CLIP's text classifier. The input h passes a layer norm without scale and shift,
      because the tower's inner features are not normalised.
    * Stages: The released code explores after each of three stages; fedvlp shifts and explores after one stage, each
      with probability 1/2 per step. Repeated images also run through the earlier stages.
    * Phi: The released code computes it before training and draws m once per round. To avoid an extra pass, fedvlp
      collects it during training (:class:`.ClientStatistics`). It draws m in each step.
    * Single images: The released code pairs the only image of a class from another batch; fedvlp pairs it with itself,
      because a step sees only its own batch.
    * Seeds of k-means++: The released code gives the first images the means of clusters around the seeds; fedvlp keeps
      the styles of the seeds.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.clip.blocks import Between
from fedvlp.core.protocols import Inputs
from fedvlp.methods.client_statistics import ClientStatistics, apply_style, compute_style, positions
from fedvlp.methods.image_tower import ImageTowerLearner, edit_stage
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveInt


class StableFDG(ImageTowerLearner):
    """CLIP's image tower, trained in other clients' styles and in new ones, with attention over image positions.

    Args:
        exploration: Factor alpha by which styles move away from their mean, at least 0.
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
        exploration: NonNegativeFloat = 3.0,
        stage: PositiveInt = 1,
        **options: Any,
    ) -> None:
        super().__init__(class_names, clip, **options)
        self.exploration = exploration
        self.stage = stage
        blocks = self.image_tower.blocks
        self.last_stage = 4 if blocks is None else len(blocks)
        if stage >= self.last_stage:
            raise UserError(f"Expected a stage below {self.last_stage}, the tower's last; got {stage}. Lower stage.")
        self.highlighter = FeatureHighlighter(self.num_channels(self.last_stage), len(class_names))
        self.share_statistics(num_clients, (2, 2, self.num_channels(stage)))

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits of a batch, with each image as its own partner."""
        images = self.precomputed(inputs)["images"]
        return self.compute_logits(images, torch.arange(images.shape[0], device=images.device), [])

    def compute_logits(
        self, images: Float[Tensor, "B 3 V V"], partners: Int[Tensor, "B"], between: list[Between]
    ) -> Float[Tensor, "B C"]:
        """Add the logits of the joint features and of the last stage's highlighted features."""
        last: list[Tensor] = []

        def record(features: Tensor) -> Tensor:
            last.append(positions(features, self.image_tower.num_prefix))
            return features

        changes = [*between, *edit_stage(self.last_stage - len(between), record)]
        joint = self.image_features(images, changes)
        highlighted: Tensor = self.highlighter(last[0], partners)
        return self.logits(joint) + highlighted

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the cross-entropy of a restyled batch, which in half of the steps repeats some of its images."""
        images = self.precomputed(inputs)["images"]
        # Both have probability 1/2 per step, and are drawn from the client's seed.
        explores, shifts = (torch.rand(2) < 0.5).tolist()
        extra = oversampled(labels, len(labels) if explores else 0)
        indices = torch.cat([torch.arange(len(labels)), extra]).to(labels.device, non_blocking=True)
        change = partial(self.restyled, len(labels), extra, shifts)
        logits = self.compute_logits(images[indices], find_partners(labels[indices]), edit_stage(self.stage, change))
        return {"loss": F.cross_entropy(logits, labels[indices])}

    def restyled(self, batch_size: int, extra: Int[Tensor, "E"], shifts: bool, features: Tensor) -> Tensor:
        """Apply the drawn styles to the features of a batch and of its repeated images."""
        style = compute_style(features[:batch_size], self.image_tower.num_prefix)
        self.statistics.collect(style, len(style))
        if shifts:
            style = self.shifted(style)
        if len(extra):
            style = mixed(explored(style, extra, self.exploration))
        return apply_style(features, style, self.image_tower.num_prefix)

    def shifted(self, style: Float[Tensor, "B 2 W"]) -> Float[Tensor, "B 2 W"]:
        """Replace half of the styles by draws from another client's; unchanged if no other client has sent styles."""
        others = self.statistics.others
        if not others:
            return style
        mean, deviation = self.statistics.clients[others[int(torch.randint(len(others), ()))]]
        drawn = mean + deviation * torch.randn(style.shape).to(style.device, non_blocking=True)
        # A drawn standard deviation may be negative.
        drawn = torch.stack([drawn[:, 0], drawn[:, 1].clamp_min(0)], dim=1)
        seeds = diverse(style.flatten(1), (len(style) + 1) // 2).to(style.device, non_blocking=True)
        return drawn.index_copy(0, seeds, style[seeds])


class FeatureHighlighter(nn.Module):
    """Attention that weights an image's positions by their similarity to another image of the class, and a classifier.

    Its logits are 0 at first, so training starts from the main classifier. ``size`` is the width of queries and keys.
    """

    def __init__(self, width: int, num_classes: int, size: int = 30) -> None:
        super().__init__()
        self.query = nn.Linear(width, size)
        self.key = nn.Linear(width, size)
        self.classes = nn.Parameter(torch.zeros(num_classes, width))

    def weights(self, features: Float[Tensor, "B N W"], partners: Int[Tensor, "B"]) -> Float[Tensor, "B N"]:
        """Compute a = softmax_p(mean_o (q_o + q'_o) / 2 . k_p) with unit queries q, partner queries q' and keys k."""
        queries = F.normalize(self.query(features), dim=-1).mean(1)  # averaging over o first gives the same product
        keys = F.normalize(self.key(features), dim=-1)
        scores = torch.einsum("bk,bpk->bp", (queries + queries[partners]) / 2, keys)
        return scores.float().softmax(dim=1)

    def forward(self, features: Float[Tensor, "B N W"], partners: Int[Tensor, "B"]) -> Float[Tensor, "B C"]:
        """Compute V h, where h is the layer-normalised weighted sum of all x_p."""
        # Use float32: a softmax over hundreds of positions has small weights.
        highlighted = torch.einsum("bp,bpw->bw", self.weights(features, partners), features.float())
        return F.layer_norm(highlighted, highlighted.shape[1:]) @ self.classes.T


def find_partners(labels: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
    """Find each image's next image of the same class in the batch, cyclically; a single image is its own partner.

    >>> find_partners(torch.tensor([4, 2, 4, 4])).tolist()
    [2, 1, 3, 0]
    """
    count = len(labels)
    indices = torch.arange(count, device=labels.device)
    steps = (indices - indices[:, None] - 1) % count  # cyclic distance minus 1; an image is farthest from itself
    return steps.masked_fill(labels != labels[:, None], count).argmin(1)


def diverse(styles: Float[Tensor, "B S"], count: int) -> Int[Tensor, "count"]:
    """Choose images with distant styles as the seeds of k-means++, at most one per distinct style.

    The first is drawn uniformly. Each next is drawn with a probability proportional to its squared distance to the
    nearest chosen style.
    """
    styles = styles.cpu()
    chosen = [int(torch.randint(len(styles), ()))]
    nearest = (styles - styles[chosen[0]]).square().sum(1)
    while len(chosen) < count and nearest.any():
        chosen.append(int(torch.multinomial(nearest, 1)))
        nearest = torch.minimum(nearest, (styles - styles[chosen[-1]]).square().sum(1))
        # Never draw a chosen style again, even if rounding leaves a positive distance.
        nearest[chosen] = 0
    return torch.tensor(chosen)


def oversampled(labels: Int[Tensor, "B"], count: int) -> Int[Tensor, "count"]:
    """Draw images to repeat, each from a class with the fewest images so far."""
    labels = labels.cpu()
    classes, sizes = labels.unique(return_counts=True)  # type: ignore[no-untyped-call]
    images: list[int] = []
    for _ in range(count):
        smallest = (sizes == sizes.min()).nonzero().flatten()
        chosen = smallest[torch.randint(len(smallest), ())]
        members = (labels == classes[chosen]).nonzero().flatten()
        images.append(int(members[torch.randint(len(members), ())]))
        sizes[chosen] += 1
    return torch.tensor(images, dtype=torch.long)


def explored(style: Float[Tensor, "B 2 W"], extra: Int[Tensor, "E"], level: float) -> Float[Tensor, "B_and_E 2 W"]:
    """Append styles of repeated images, moved away from the batch's mean, to the styles of a batch.

    A repeated image's s becomes s + alpha (s - mean(s)). Negative standard deviations are set to 0.
    """
    repeated = style[extra.to(style.device, non_blocking=True)]
    moved = repeated + level * (repeated - style.mean(0))
    return torch.cat([style, torch.stack([moved[:, 0], moved[:, 1].clamp_min(0)], dim=1)])


def mixed(style: Float[Tensor, "B 2 W"]) -> Float[Tensor, "B 2 W"]:
    """Compute lambda s_i + (1 - lambda) s_j with a random permutation j and lambda drawn from Beta(0.1, 0.1)."""
    beta = torch.distributions.Beta(0.1, 0.1)
    share = beta.sample(torch.Size([len(style), 1, 1])).to(style.device, non_blocking=True)
    others = torch.randperm(len(style)).to(style.device, non_blocking=True)
    return share * style + (1 - share) * style[others]
