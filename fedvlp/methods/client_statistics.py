"""Image statistics that all clients share for training, and styles: the mean and standard deviation of each channel.

Huang and Belongie, "Arbitrary style transfer in real-time with adaptive instance normalization", ICCV 2017, Eq. 8.
Features are the feature map [B, W, height, width] of a ResNet's stage or the tokens [B, P, W] of a ViT's block. The
leading tokens of a ViT that are not patches, such as the class token, neither enter the style nor change.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.core.phases import RoundContext


class ClientStatistics(nn.Module):
    """Statistics of all clients' training images, one slot per client; the server only forwards them.

    A client collects its statistics while it trains and sends them afterwards, in each round in which it takes part. So
    in the first round, no client has statistics of others. A slot of zeros belongs to a client that has sent nothing.

    Args:
        num_clients: Number of clients K.
        shape: Shape of one client's statistics.
        renewed: Whether a client collects its statistics again in each round.
    """

    clients: Tensor  # statistics of all clients [K, *shape]
    own: Tensor  # statistics [*shape] collected by the client and kept between the phases
    images_seen: Tensor  # number of images that ``own`` covers

    def __init__(self, num_clients: int, shape: Sequence[int], renewed: bool = True) -> None:
        super().__init__()
        self.renewed = renewed
        self.slot = -1  # of the training client; -1 if there are no clients
        self.others: list[int] = []  # slots of the other clients that have sent statistics
        self.register_buffer("clients", torch.zeros(num_clients, *shape))
        self.register_buffer("own", torch.zeros(*shape))
        self.register_buffer("images_seen", torch.zeros(()))

    def start_client(self, context: RoundContext) -> None:
        """Prepare for a client's phase; training discards the statistics of the previous round."""
        # A client's slot is its id, as in the strategy of the second phase.
        self.slot = context.client.id
        # Read only once, because reading values makes a GPU wait.
        filled = self.clients.flatten(1).any(1).nonzero().flatten().tolist()
        self.others = [slot for slot in filled if slot != self.slot]
        if self.renewed and context.phase.train:
            self.own.zero_()
            self.images_seen.zero_()

    def collect(self, values: Float[Tensor, "N *shape"], images: int) -> None:
        """Add a batch of values to the client's means and standard deviations, ``own`` [2, *shape]."""
        seen = self.images_seen + images
        self.own.copy_(pooled(self.own.flatten(1), values.flatten(1), images / seen).view_as(self.own))
        self.images_seen.copy_(seen)


def positions(features: Tensor, prefix: int) -> Float[Tensor, "B N W"]:
    """Flatten a feature map, or a ViT's tokens without the `prefix` ones, into features at N positions."""
    return features.flatten(2).transpose(1, 2) if features.ndim == 4 else features[:, prefix:]


def compute_style(features: Tensor, prefix: int) -> Float[Tensor, "B 2 W"]:
    """Compute each image's style: means and standard deviations over positions, in float32 and without a gradient."""
    # A style is a target outside the graph. 1e-5 avoids dividing by 0 in a channel without variance.
    values = positions(features.detach(), prefix).float()
    return torch.stack([values.mean(1), (values.var(1, correction=0) + 1e-5).sqrt()], dim=1)


def apply_style(features: Tensor, style: Float[Tensor, "B 2 W"], prefix: int) -> Tensor:
    """Apply other styles to features: sigma' (x - mu) / sigma + mu'. Their own style leaves them unchanged.

    >>> tokens = torch.tensor([[[9.0], [1.0], [3.0]]])  # a class token, and two positions of mean 2, deviation 1
    >>> apply_style(tokens, torch.tensor([[[10.0], [5.0]]]), prefix=1).flatten().tolist()
    [9.0, 5.000024795532227, 14.999975204467773]
    """
    own = compute_style(features, prefix)
    # One factor and one offset per channel, so the features are read only once.
    scale = style[:, 1] / own[:, 1]  # [B, W]
    shift = style[:, 0] - own[:, 0] * scale
    if features.ndim == 4:
        return (features * scale[..., None, None] + shift[..., None, None]).to(features.dtype)
    changed = features[:, prefix:] * scale[:, None] + shift[:, None]
    return torch.cat([features[:, :prefix], changed.to(features.dtype)], dim=1)


def pooled(style: Float[Tensor, "2 W"], values: Float[Tensor, "N W"], share: Float[Tensor, ""]) -> Float[Tensor, "2 W"]:
    """Update the means and standard deviations of channels with new values.

    The new values are a share in (0, 1] of all values.

    >>> old = torch.tensor([[2.0], [1.0]])  # of the values 1 and 3
    >>> pooled(old, torch.tensor([[5.0], [7.0]]), torch.tensor(0.5)).flatten().tolist()  # 1, 3, 5, 7
    [4.0, 2.2360680103302]
    """
    mean = values.mean(0)
    # The variance of a union is the mean of both variances plus the variance between the two means.
    between = share * (1 - share) * (mean - style[0]).square()
    variance = (1 - share) * style[1].square() + share * values.var(0, correction=0) + between
    return torch.stack([torch.lerp(style[0], mean, share), variance.sqrt()])
