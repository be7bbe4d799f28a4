"""StableFDG: features take on styles of other clients and unseen ones, and what a class's images share is highlighted.

Paper: Park et al., "StableFDG: Style and Attention Based Learning for Federated Domain Generalization", NeurIPS 2023.

Symbols: s = (mu, sigma), 2 x W, style of an image's features; Phi_n mean and deviation of s over the images of client n
-> ``statistics.clients[n]`` [2, 2, W]; alpha -> ``exploration``; x_p features of position p behind the last stage.
    Phi_n = (mean(s), deviation(s)) over the client's images                           :func:`.pooled`
    half of a batch, the seeds of k-means++ over s, keeps its styles; s ~ Phi_m for the others, m another client
                                                                                       :meth:`StableFDG.shifted`
    s' = s + alpha (s - mean(s)) for images of a batch seen once more, rare classes first  :func:`.explored`
    s <- lambda s_i + (1 - lambda) s_j, lambda ~ Beta(0.1, 0.1)                        :func:`.mixed`
    a_p, from queries of an image and another of its class; h = sum_p a_p x_p          :class:`.FeatureHighlighter`
    CE over all of these                                                               :meth:`StableFDG.losses`

Departures:
    * Classifier: in the paper the mean feature of a ResNet-18 and h enter one linear layer; fedvlp adds a linear part
      for h, which starts at 0, to CLIP's text features. h passes a layer norm without scale and shift, because the
      tower's inner features are not normalised.
    * Stages: the released code explores after each of three stages; fedvlp shifts and explores after one, each with
      probability 1/2 in a step. The doubled images run through the stages below, too.
    * Phi: the released code computes it beforehand and draws m once a round; fedvlp collects it in training
      (:class:`.ClientStatistics`) and draws m in each step.
    * Lone images: an image alone of its class is its own partner; the released code takes another batch to pair it.
    * Seeds of k-means++: their styles are kept; the released code gives its first images the means of clusters around
      them.
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
from fedvlp.methods.client_statistics import ClientStatistics, positions, style_of, with_style
from fedvlp.methods.image_tower import ImageTowerLearner, after_stage
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveInt


class StableFDG(ImageTowerLearner):
    """Trains CLIP's image tower in styles of other clients and beyond, and an attention over an image's positions.

    Args:
        exploration: alpha, how far styles are led away from their mean, at least 0.
        stage: The stage of the image tower behind which styles are taken and changed, from 1: a ViT's block, or one of
            the four stages of a ResNet or ConvNeXt.
        options: Head, rates and optimizer, as of :class:`.ImageTowerLearner`.
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
            raise UserError(f"Styles are changed before the last of the tower's {self.last_stage} stages. Lower stage.")
        self.highlighter = FeatureHighlighter(self.num_channels(self.last_stage), len(class_names))
        self.share_statistics(num_clients, (2, 2, self.num_channels(stage)))

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits of a batch, in which each image is its own partner."""
        images = self.precomputed(inputs)["images"]
        return self.logits_of(images, torch.arange(images.shape[0], device=images.device), [])

    def logits_of(
        self, images: Float[Tensor, "B 3 V V"], partners: Int[Tensor, "B"], between: list[Between]
    ) -> Float[Tensor, "B C"]:
        """Compute the logits by the joint features, plus those by the highlighted features of the last stage."""
        last: list[Tensor] = []

        def keep(features: Tensor) -> Tensor:
            last.append(positions(features, self.image_tower.num_prefix))
            return features

        changes = [*between, *after_stage(self.last_stage - len(between), keep)]
        joint = self.image_features(images, changes)
        highlighted: Tensor = self.highlighter(last[0], partners)
        return self.logits(joint) + highlighted

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the cross-entropy of a batch in other styles and, every second time, of some of its images again."""
        images = self.precomputed(inputs)["images"]
        # Each with probability 1/2 in a step, both by the client's own seed.
        explores, shifts = (torch.rand(2) < 0.5).tolist()
        extra = oversampled(labels, len(labels) if explores else 0)
        every = torch.cat([torch.arange(len(labels)), extra]).to(labels.device, non_blocking=True)
        change = partial(self.restyled, len(labels), extra, shifts)
        logits = self.logits_of(images[every], partners_of(labels[every]), after_stage(self.stage, change))
        return {"loss": F.cross_entropy(logits, labels[every])}

    def restyled(self, batch_size: int, extra: Int[Tensor, "E"], shifts: bool, features: Tensor) -> Tensor:
        """Compute features of a batch, and of some of its images again, in the styles that are drawn for them."""
        style = style_of(features[:batch_size], self.image_tower.num_prefix)
        self.statistics.collect(style, len(style))
        if shifts:
            style = self.shifted(style)
        if len(extra):
            style = mixed(explored(style, extra, self.exploration))
        return with_style(features, style, self.image_tower.num_prefix)

    def shifted(self, style: Float[Tensor, "B 2 W"]) -> Float[Tensor, "B 2 W"]:
        """Compute styles, of which half are another client's, drawn; unchanged if no other client has sent some."""
        others = self.statistics.others
        if not others:
            return style
        mean, deviation = self.statistics.clients[others[int(torch.randint(len(others), ()))]]
        drawn = mean + deviation * torch.randn(style.shape).to(style.device, non_blocking=True)
        # A drawn deviation may be negative, which no style has.
        drawn = torch.stack([drawn[:, 0], drawn[:, 1].clamp_min(0)], dim=1)
        kept = diverse(style.flatten(1), (len(style) + 1) // 2).to(style.device, non_blocking=True)
        return drawn.index_copy(0, kept, style[kept])


class FeatureHighlighter(nn.Module):
    """Weighs an image's positions by what they share with another image of the class, and classifies by their sum.

    Its part of the logits is 0 at first, so that training starts from the classifier beside it. Queries and keys have
    the given size.
    """

    def __init__(self, width: int, num_classes: int, size: int = 30) -> None:
        super().__init__()
        self.query = nn.Linear(width, size)
        self.key = nn.Linear(width, size)
        self.classes = nn.Parameter(torch.zeros(num_classes, width))

    def weights(self, features: Float[Tensor, "B N W"], partners: Int[Tensor, "B"]) -> Float[Tensor, "B N"]:
        """Compute a = softmax_p(mean_o of (q_o + q'_o) / 2 . k_p), q and k of length 1, q' those of the partner."""
        queries = F.normalize(self.query(features), dim=-1).mean(1)  # the mean over o goes before the product
        keys = F.normalize(self.key(features), dim=-1)
        scores = torch.einsum("bk,bpk->bp", (queries + queries[partners]) / 2, keys)
        return scores.float().softmax(dim=1)

    def forward(self, features: Float[Tensor, "B N W"], partners: Int[Tensor, "B"]) -> Float[Tensor, "B C"]:
        """Compute V h, where h is the sum of all x_p by their weights, without scale and shift."""
        # In float32: a softmax over hundreds of positions has small weights.
        highlighted = torch.einsum("bp,bpw->bw", self.weights(features, partners), features.float())
        return F.layer_norm(highlighted, highlighted.shape[1:]) @ self.classes.T


def partners_of(labels: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
    """Return for each image the next one of its class in the batch, in a circle; an image that is alone is its own.

    >>> partners_of(torch.tensor([4, 2, 4, 4])).tolist()
    [2, 1, 3, 0]
    """
    count = len(labels)
    places = torch.arange(count, device=labels.device)
    steps = (places - places[:, None] - 1) % count  # from an image to each other, in a circle; to itself the most
    return steps.masked_fill(labels != labels[:, None], count).argmin(1)


def diverse(styles: Float[Tensor, "B S"], count: int) -> Int[Tensor, "count"]:
    """Return images whose styles lie far apart: the seeds of k-means++, at most as many as styles differ.

    The first is any; each next is drawn with a probability proportional to the squared distance to the nearest so far.
    """
    styles = styles.cpu()
    chosen = [int(torch.randint(len(styles), ()))]
    nearest = (styles - styles[chosen[0]]).square().sum(1)
    while len(chosen) < count and nearest.any():
        chosen.append(int(torch.multinomial(nearest, 1)))
        nearest = torch.minimum(nearest, (styles - styles[chosen[-1]]).square().sum(1))
        # What is chosen is not drawn again, whatever rounding left of its distance.
        nearest[chosen] = 0
    return torch.tensor(chosen)


def oversampled(labels: Int[Tensor, "B"], count: int) -> Int[Tensor, "count"]:
    """Draw images to repeat, one after the other from a class with the fewest images so far."""
    labels = labels.cpu()
    classes, sizes = labels.unique(return_counts=True)  # type: ignore[no-untyped-call]
    images: list[int] = []
    for _ in range(count):
        smallest = (sizes == sizes.min()).nonzero().flatten()
        place = smallest[torch.randint(len(smallest), ())]
        members = (labels == classes[place]).nonzero().flatten()
        images.append(int(members[torch.randint(len(members), ())]))
        sizes[place] += 1
    return torch.tensor(images, dtype=torch.long)


def explored(style: Float[Tensor, "B 2 W"], extra: Int[Tensor, "E"], level: float) -> Float[Tensor, "B_and_E 2 W"]:
    """Compute the styles of a batch and, behind them, those of some of its images led away from the batch's mean.

    An image's s becomes s + alpha (s - mean(s)). A deviation that would become negative is 0.
    """
    chosen = style[extra.to(style.device, non_blocking=True)]
    led = chosen + level * (chosen - style.mean(0))
    return torch.cat([style, torch.stack([led[:, 0], led[:, 1].clamp_min(0)], dim=1)])


def mixed(style: Float[Tensor, "B 2 W"]) -> Float[Tensor, "B 2 W"]:
    """Compute lambda s_i + (1 - lambda) s_j, j of a permutation and lambda of Beta(0.1, 0.1), drawn anew."""
    beta = torch.distributions.Beta(0.1, 0.1)
    share = beta.sample(torch.Size([len(style), 1, 1])).to(style.device, non_blocking=True)
    others = torch.randperm(len(style)).to(style.device, non_blocking=True)
    return share * style + (1 - share) * style[others]
