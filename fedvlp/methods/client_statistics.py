"""Statistics of images that clients send for all clients to train with, and styles: mean and deviation of a channel.

Huang and Belongie, "Arbitrary style transfer in real-time with adaptive instance normalization", ICCV 2017, Eq. 8.
Features are the feature map [B, W, height, width] of a ResNet's stage or the tokens [B, P, W] of a ViT's block. A ViT's
class token is no position of the image: it has no part in the style and is not changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.clip.blocks import Between
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.slots import Slots
from fedvlp.core.state import State
from fedvlp.methods.image_tower import ImageTowerLearner


class ClientStatistics(nn.Module):
    """Statistics of all clients' training images, a slot for each client, which the server only passes on.

    A client collects its own while it trains and sends them after that, in each round in which it takes part. So no
    client has others' statistics in the first round, and a client that comes late is heard. A slot of zeros belongs to
    a client that has sent nothing yet.

    A method names it ``statistics``, so that its tensors have the names below.

    Args:
        num_clients: K.
        shape: Of one client's statistics.

    Attributes:
        clients: of all clients, [K, *shape].
        own: what the client has collected; it stays there between the phases.
        images_seen: how many images they are of.
    """

    personal = ("statistics.own", "statistics.images_seen")
    sent = ("statistics.clients",)
    clients: Tensor
    own: Tensor
    images_seen: Tensor

    def __init__(self, num_clients: int, shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("clients", torch.zeros(num_clients, *shape))
        self.register_buffer("own", torch.zeros(*shape))
        self.register_buffer("images_seen", torch.zeros(()))

    def phases(self, train: Phase) -> Sequence[Phase]:
        """Returns two phases: train all and average it; send what was collected, which is not deployed.

        Args:
            train: The first.
        """
        slots = Slots("client", slots=len(self.clients))
        share = Phase("share", train=(), upload=self.sent, strategy=slots, download=(), deploy=train.upload)
        return (train, share)

    def upload(self, context: RoundContext | None) -> State | None:
        """Returns what a client has collected, after the phase in which it sends it; None after another."""
        is_sent = context is not None and context.phase.upload == self.sent
        return {"statistics.clients": self.own} if is_sent else None

    def clear(self) -> None:
        """Forgets what the client had collected."""
        self.own.zero_()
        self.images_seen.zero_()

    def others(self, context: RoundContext | None) -> list[int]:
        """Returns the slots of the other clients of which something is known."""
        filled = self.clients.flatten(1).any(1).nonzero().flatten().tolist()
        return [slot for slot in filled if slot != own_slot(context)]


def own_slot(context: RoundContext | None) -> int:
    """Returns the slot of the client that trains; -1 where there are no clients."""
    return -1 if context is None else context.client.id


VARIANCE_FLOOR = 1e-5
"""Added to a variance, so that a channel without any can be divided by its deviation."""


def positions(features: Tensor) -> Float[Tensor, "B N W"]:
    """Returns what a feature map, or a ViT's tokens but for the class token, holds at the N positions of the image."""
    return features.flatten(2).transpose(1, 2) if features.ndim == 4 else features[:, 1:]


def style_of(features: Tensor) -> Float[Tensor, "B 2 W"]:
    """Returns each image's style: means and deviations over positions, in float32 and without a gradient."""
    values = positions(features.detach()).float()
    return torch.stack([values.mean(1), (values.var(1, correction=0) + VARIANCE_FLOOR).sqrt()], dim=1)


def with_style(features: Tensor, style: Float[Tensor, "B 2 W"]) -> Tensor:
    """Returns features in other styles: sigma' (x - mu) / sigma + mu'; where the style is their own, as they were.

    Example:
        >>> tokens = torch.tensor([[[9.0], [1.0], [3.0]]])  # a class token, and two positions of mean 2, deviation 1
        >>> with_style(tokens, torch.tensor([[[10.0], [5.0]]])).flatten().tolist()
        [9.0, 5.000024795532227, 14.999975204467773]
    """
    own = style_of(features)
    scale = style[:, 1] / own[:, 1]
    shift = style[:, 0] - own[:, 0] * scale
    if features.ndim == 4:
        return (features * scale[..., None, None] + shift[..., None, None]).to(features.dtype)
    changed = features[:, 1:] * scale[:, None] + shift[:, None]
    return torch.cat([features[:, :1], changed.to(features.dtype)], dim=1)


def pooled(style: Float[Tensor, "2 W"], values: Float[Tensor, "N W"], share: Float[Tensor, ""]) -> Float[Tensor, "2 W"]:
    """Returns means and deviations over all values of channels so far, from those before and the newest values.

    Args:
        style: of the values before.
        values: the newest.
        share: of the newest among all, in (0, 1].

    Example:
        >>> old = torch.tensor([[2.0], [1.0]])  # of 1 and 3
        >>> pooled(old, torch.tensor([[5.0], [7.0]]), torch.tensor(0.5)).flatten().tolist()  # 1, 3, 5, 7
        [4.0, 2.2360680103302]
    """
    mean = values.mean(0)
    between = share * (1 - share) * (mean - style[0]).square()
    variance = (1 - share) * style[1].square() + share * values.var(0, correction=0) + between
    return torch.stack([torch.lerp(style[0], mean, share), variance.sqrt()])


def num_channels(learner: ImageTowerLearner, stage: int) -> int:
    """Returns W, the number of channels behind a stage of a tower.

    Raises:
        UserError: If the tower has fewer stages, or none that can be run one by one.
    """
    widths: list[int] = []

    def measured(features: Tensor) -> Tensor:
        widths.append(positions(features).shape[2])
        return features

    size = learner.clip.image_size
    learner.eval()  # a blank image must not count in the statistics of batches
    with torch.no_grad():
        learner.image_features(torch.zeros(1, 3, size, size), after_stage(stage, measured))
    learner.train()
    return widths[0]


def after_stage(stage: int, change: Between) -> Sequence[Between]:
    """Returns what stands behind the stages of a tower, counted from 1, where only one's output is changed."""
    return [_unchanged] * (stage - 1) + [change]


def _unchanged(features: Tensor) -> Tensor:
    return features
