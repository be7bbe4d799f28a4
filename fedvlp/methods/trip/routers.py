"""Routers of TRIP: from an image to the weights pi of the prompt experts.

Each has `precompute`, whose tensors never change for an image and are cached, and `forward`, which makes pi of them.

    clusters to keys, the paper's              :class:`TokenRouter`
    clusters to the experts (Table V)          :class:`ExpertMatchingRouter`
    images of a batch to keys (Fig. 3)         :class:`ImageRouter`
    learned from tokens or images (Fig. 3)     :class:`LearnedRouter`
    random (Table V), or all experts alike     :class:`RandomRouter`, :class:`UniformRouter`

What the paper leaves open:
    * Clusters (width W) and experts (width D) are compared in the joint space, as the one has no cosine with the other.
    * The feature by which images are clustered is f(x), the one that learned image routing takes.
    * Evaluation clusters the images of its batch too, with its own capacity. An image that finds no room gets all
      experts alike; a batch of fewer images than experts has a cluster for each image, so a single one goes to the
      nearest key. What is predicted for an image thus depends on its batch, as in no other routing.
    * A learned router mixes by probabilities, of tokens by their mean, not by the largest alone, which has no gradient;
      the balance loss is Switch Transformer's, with its weight 0.01, as the paper cites.
    * Random routing of tokens makes all shares nearly equal; ``random`` spreads them as widely as routes can be.
"""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.clip import CLIP
from fedvlp.methods.trip.cluster_routers import ExpertMatchingRouter, ImageRouter, TokenRouter
from fedvlp.methods.trip.hashing import image_seeds, random_shares, random_token_shares
from fedvlp.methods.trip.options import Experts, RouterOptions
from fedvlp.utils.errors import UserError


def load_balance(probabilities: Float[Tensor, "N E"]) -> Float[Tensor, ""]:
    """Returns E sum_m f_m P_m, which is 1 when routed items are spread evenly and larger when they are not.

    f_m is the share of items whose most probable expert is m, without a gradient, P_m the mean probability of m (Fedus
    et al., "Switch Transformers", JMLR 2022, Eqs. 4 to 6).

    Example:
        >>> import torch
        >>> load_balance(torch.tensor([[1.0, 0.0], [0.0, 1.0]])).item()
        1.0
        >>> load_balance(torch.tensor([[1.0, 0.0], [1.0, 0.0]])).item()
        2.0
    """
    num_experts = probabilities.shape[1]
    fractions = F.one_hot(probabilities.argmax(dim=1), num_experts).to(probabilities).mean(dim=0)
    return num_experts * (fractions * probabilities.mean(dim=0)).sum()


class LearnedRouter(nn.Module):
    """A linear layer and a softmax, trained and sent with the experts (Sec. V-F, learnable).

    Of tokens, pi is the mean over an image's tokens of their probabilities; the cache then holds all tokens of each
    image, which takes as much memory as its pixels. Of images, pi is the probability of the global feature f(x).

    Args:
        options: What it is made from.
        width: Width of what is routed.
        balance_weight: Weight of the balance loss.
    """

    def __init__(self, options: RouterOptions, width: int, balance_weight: float = 0.01) -> None:
        super().__init__()
        self.options = options
        self.seed = options.key_seed
        self.balance_weight = balance_weight
        self.linear = nn.Linear(width, options.num_experts)

    def precompute(self, images: Tensor, features: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Returns the tokens, where these are routed."""
        return {"tokens": tokens} if self.options.routing == "learned_token" else {}

    def forward(self, constants: dict[str, Tensor], experts: Experts) -> Float[Tensor, "B E"]:
        """Returns pi."""
        return self.probabilities(constants).mean(dim=1)

    def probabilities(self, constants: dict[str, Tensor]) -> Float[Tensor, "B P E"]:
        """Returns the probabilities of each token, or of each image as if it were one token."""
        items = constants["tokens"] if "tokens" in constants else constants["features"][:, None]
        return cast(Tensor, self.linear(items)).float().softmax(dim=-1)

    def imbalance(self, constants: dict[str, Tensor]) -> Float[Tensor, ""]:
        """Returns the balance loss over all routed items of a batch, 1 when they are spread evenly."""
        return load_balance(self.probabilities(constants).flatten(0, 1))


class RandomRouter(nn.Module):
    """Weights that depend on an image's own pixels and the seed and on nothing seen in it: the control for routing.

    `random` draws pi uniformly among all that sum to one; `random_tokens` draws an expert for each token, as Table V.

    Args:
        options: What it is made from.
    """

    def __init__(self, options: RouterOptions) -> None:
        super().__init__()
        self.options = options
        self.seed = options.key_seed

    def precompute(self, images: Tensor, features: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Returns pi."""
        seeds = image_seeds(images)
        num_experts = self.options.num_experts
        if self.options.routing == "random":
            return {"weights": random_shares(seeds, num_experts, self.seed)}
        return {"weights": random_token_shares(seeds, tokens.shape[1], num_experts, self.seed)}

    def forward(self, constants: dict[str, Tensor], experts: Experts) -> Float[Tensor, "B E"]:
        """Returns pi."""
        return constants["weights"]


class UniformRouter(nn.Module):
    """All experts alike for every image: one prompt, the mean of the experts.

    Args:
        options: What it is made from.
    """

    def __init__(self, options: RouterOptions) -> None:
        super().__init__()
        self.options = options
        self.seed = options.key_seed

    def precompute(self, images: Tensor, features: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Returns nothing."""
        return {}

    def forward(self, constants: dict[str, Tensor], experts: Experts) -> Float[Tensor, "B E"]:
        """Returns pi = 1 / M."""
        features = constants["features"]
        return features.new_full((len(features), self.options.num_experts), 1 / self.options.num_experts)


Router = TokenRouter | ExpertMatchingRouter | ImageRouter | LearnedRouter | RandomRouter | UniformRouter


def make_router(options: RouterOptions, clip: CLIP) -> Router:
    """Returns the router that the options ask for.

    Raises:
        UserError: If there is no such routing.
    """
    routing = options.routing
    if routing == "token" and options.matched_to == "experts":
        return ExpertMatchingRouter(options, clip)
    if routing == "token":
        return TokenRouter(options, clip.image_width)
    if routing == "image":
        return ImageRouter(options, clip.embed_dim)
    if routing == "learned_token":
        return LearnedRouter(options, clip.image_width)
    if routing == "learned_image":
        return LearnedRouter(options, clip.embed_dim)
    if routing in ("random", "random_tokens"):
        return RandomRouter(options)
    if routing == "uniform":
        return UniformRouter(options)
    raise UserError(f"TRIP knows no routing {routing!r}. Use token, image, uniform, random or a learned one.")
