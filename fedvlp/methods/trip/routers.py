"""Routers of TRIP: from an image to the weights pi of the prompt experts.

`precompute` computes an image's constant tensors, which are cached. `forward` computes pi from them.

    clusters to keys, as in the paper          :class:`TokenRouter`
    clusters to the experts (Table V)          :class:`ExpertMatchingRouter`
    learned from tokens or images (Fig. 3)     :class:`LearnedRouter`
    random (Table V), or equal weights         :class:`RandomRouter`, :class:`UniformRouter`

Deviations:
    * Matching to experts: Clusters and experts are compared in the joint space, because their widths W and D differ.
    * Image routing (Fig. 3): The paper has a router that clusters the images of a batch; fedvlp omits it, because an
      image's prediction would depend on its batch. The paper's "global image features" are taken to be f(x).
    * Learned routing: The paper does not state how tokens are combined; fedvlp averages their probabilities, because
      an argmax has no gradient. The balance loss is Switch Transformer's, which the paper cites, with its weight 0.01.
    * Random routing: The paper's random tokens make all shares nearly equal; fedvlp adds ``random``, which draws pi
      uniformly from all possible weights.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedvlp.clip import CLIP
from fedvlp.methods.trip.clustering import Clusters, capacity_kmeans, cluster_capacities
from fedvlp.methods.trip.hashing import image_seeds, random_shares, random_start, random_token_shares
from fedvlp.methods.trip.routing import KeyInit, cluster_shares, expert_shares, key_start, make_keys, match_clusters
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import PositiveFloat, PositiveInt, Seed

Routing = Literal["token", "uniform", "random", "random_tokens", "learned_token", "learned_image"]
Experts = Callable[[], Float[Tensor, "E d"]]
"""Computes the experts' features in the joint space, for routers that need them."""


@dataclass(frozen=True)
class RouterOptions:
    """Options of a router; see TRIP's arguments of the same names."""

    routing: Routing
    num_experts: PositiveInt
    train_capacity: PositiveFloat | None
    eval_capacity: PositiveFloat | None
    key_init: KeyInit
    key_seed: Seed
    matched_to: Literal["keys", "experts"]
    cluster_start: Literal["random", "keys"]


class Router(nn.Module):
    """Base class: computes the experts' weights from images."""

    keys: Tensor  # only in a TokenRouter

    def __init__(self, options: RouterOptions) -> None:
        super().__init__()
        self.options = options
        self.seed = options.key_seed

    def precompute(self, images: Tensor, features: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Compute an image's constant tensors from pixels [B, 3, V, V], f(x) [B, d] and tokens [B, P, W]."""
        return {}

    @abstractmethod
    def forward(self, constants: dict[str, Tensor], experts: Experts) -> Float[Tensor, "B E"]:
        """Compute pi."""

    def clusters(self, images: Tensor, tokens: Tensor) -> dict[str, Clusters]:
        """Cluster each image's tokens under the training and the evaluation capacity, from the same start."""
        num_tokens = tokens.shape[1]
        count = self.options.num_experts
        if self.options.cluster_start == "keys":
            start = key_start(tokens, self.keys)
        else:
            start = random_start(image_seeds(images), num_tokens, count, self.seed)
        capacities = {"train": self.options.train_capacity, "eval": self.options.eval_capacity}
        clusters = {}
        # Both are computed, because the cache serves training and evaluation.
        for mode, capacity in capacities.items():
            clusters[mode] = capacity_kmeans(tokens, start, cluster_capacities(num_tokens, count, capacity))
        return clusters


class TokenRouter(Router):
    """The share of an image's tokens, of width W, in the cluster matched to each key (Eqs. 2 to 8)."""

    def __init__(self, options: RouterOptions, width: int) -> None:
        super().__init__(options)
        keys = make_keys(options.key_init, options.num_experts, width, options.key_seed)
        self.register_buffer("keys", keys, persistent=False)  # recreated from the seed

    def precompute(self, images: Tensor, features: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Compute pi and the share of tokens kept, under both capacities."""
        constants = {}
        for mode, clusters in self.clusters(images, tokens).items():
            constants[f"{mode}_weights"] = expert_shares(clusters, self.keys)
            constants[f"{mode}_kept"] = clusters.sizes.sum(dim=1) / tokens.shape[1]
        return constants

    def forward(self, constants: dict[str, Tensor], experts: Experts) -> Float[Tensor, "B E"]:
        """Compute pi."""
        return constants["train_weights" if self.training else "eval_weights"]

    def token_experts(self, images: Tensor, tokens: Tensor, experts: Experts) -> Int[Tensor, "B P"]:
        """Find the expert of each token in evaluation; -1 for a dropped token."""
        clusters = self.clusters(images, tokens)["eval"]
        return clusters.matched_to(match_clusters(clusters.centroids, self.keys))


class ExpertMatchingRouter(Router):
    """Clusters matched to the current experts by cosine in the joint space (Table V, without keys).

    Clusters are compared by the joint features of their means mu_i, experts by their mean text features over classes.
    """

    def __init__(self, options: RouterOptions, clip: CLIP) -> None:
        super().__init__(options)
        self.clip = clip

    def precompute(self, images: Tensor, features: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Compute centroids, cluster shares and the share of tokens kept, under both capacities."""
        constants = {}
        for mode, clusters in self.clusters(images, tokens).items():
            constants[f"{mode}_centroids"] = self.clip.image.project(clusters.centroids.to(tokens.dtype))
            constants[f"{mode}_shares"] = cluster_shares(clusters)
            constants[f"{mode}_kept"] = clusters.sizes.sum(dim=1) / tokens.shape[1]
        return constants

    @torch.no_grad()
    def forward(self, constants: dict[str, Tensor], experts: Experts) -> Float[Tensor, "B E"]:
        """Compute pi for the current experts; the assignment has no gradient."""
        mode = "train" if self.training else "eval"
        shares = constants[f"{mode}_shares"]
        matched = match_clusters(constants[f"{mode}_centroids"], experts())
        return torch.zeros_like(shares).scatter_(1, matched, shares)

    def token_experts(self, images: Tensor, tokens: Tensor, experts: Experts) -> Int[Tensor, "B P"]:
        """Find the expert of each token in evaluation; -1 for a dropped token."""
        clusters = self.clusters(images, tokens)["eval"]
        centroids = self.clip.image.project(clusters.centroids.to(tokens.dtype))
        return clusters.matched_to(match_clusters(centroids, experts()))


class LearnedRouter(Router):
    """A linear layer and a softmax, trained and sent with the experts (Sec. V-F, learnable routing).

    With tokens, pi is the mean of their probabilities. The cache then holds all tokens of each image, which takes as
    much memory as its pixels. With images, pi is the probability of the global feature f(x).

    ``width`` is the width of the routed tokens or features.
    """

    def __init__(self, options: RouterOptions, width: int, balance_weight: float = 0.01) -> None:
        super().__init__(options)
        self.balance_weight = balance_weight
        self.linear = nn.Linear(width, options.num_experts)

    def precompute(self, images: Tensor, features: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Cache the tokens if they are routed."""
        return {"tokens": tokens} if self.options.routing == "learned_token" else {}

    def forward(self, constants: dict[str, Tensor], experts: Experts) -> Float[Tensor, "B E"]:
        """Compute pi."""
        # The mean has a gradient for the layer; the argmax has none.
        return self.probabilities(constants).mean(dim=1)

    def probabilities(self, constants: dict[str, Tensor]) -> Float[Tensor, "B P E"]:
        """Compute the probabilities of each token, or of each image treated as one token."""
        items = constants["tokens"] if "tokens" in constants else constants["features"][:, None]
        return cast(Tensor, self.linear(items)).float().softmax(dim=-1)

    def imbalance(self, constants: dict[str, Tensor]) -> Float[Tensor, ""]:
        """Compute the balance loss over all routed items of a batch; 1 if they are spread evenly."""
        return load_balance(self.probabilities(constants).flatten(0, 1))


def load_balance(probabilities: Float[Tensor, "N E"]) -> Float[Tensor, ""]:
    """Compute E sum_m f_m P_m, which is 1 if routed items are spread evenly and larger otherwise.

    f_m is the share of items whose most probable expert is m, without a gradient. P_m is the mean probability of m
    (Fedus et al., "Switch Transformers", JMLR 2022, Eqs. 4 to 6).

    >>> load_balance(torch.tensor([[1.0, 0.0], [0.0, 1.0]])).item()
    1.0
    >>> load_balance(torch.tensor([[1.0, 0.0], [1.0, 0.0]])).item()
    2.0
    """
    num_experts = probabilities.shape[1]
    # The share of items has no gradient, so the loss has one only through the mean probability.
    fractions = F.one_hot(probabilities.argmax(dim=1), num_experts).to(probabilities).mean(dim=0)
    return num_experts * (fractions * probabilities.mean(dim=0)).sum()


class RandomRouter(Router):
    """Random weights derived from a hash of the image's pixels and the seed: a control for routing.

    `random` draws pi uniformly from all weights that sum to 1; `random_tokens` draws an expert per token (Table V).
    """

    def precompute(self, images: Tensor, features: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Draw pi."""
        seeds = image_seeds(images)
        num_experts = self.options.num_experts
        if self.options.routing == "random":
            return {"weights": random_shares(seeds, num_experts, self.seed)}
        return {"weights": random_token_shares(seeds, tokens.shape[1], num_experts, self.seed)}

    def forward(self, constants: dict[str, Tensor], experts: Experts) -> Float[Tensor, "B E"]:
        """Compute pi."""
        return constants["weights"]


class UniformRouter(Router):
    """Equal weights for every image: one prompt, the mean of the experts."""

    def forward(self, constants: dict[str, Tensor], experts: Experts) -> Float[Tensor, "B E"]:
        """Compute pi = 1 / M."""
        features = constants["features"]
        return features.new_full((len(features), self.options.num_experts), 1 / self.options.num_experts)


def make_router(options: RouterOptions, clip: CLIP) -> Router:
    """Create the router that the options select."""
    clip.image.require_tokens()  # raises an error now if the tower has no tokens
    routing = options.routing
    if options.matched_to == "experts" and options.cluster_start == "keys":
        raise UserError("matched_to=experts has no keys for cluster_start=keys. Use cluster_start=random.")
    if routing == "token" and options.matched_to == "experts":
        return ExpertMatchingRouter(options, clip)
    if routing == "token":
        return TokenRouter(options, clip.image_width)
    if routing == "learned_token":
        return LearnedRouter(options, clip.image_width)
    if routing == "learned_image":
        return LearnedRouter(options, clip.embed_dim)
    if routing in ("random", "random_tokens"):
        return RandomRouter(options)
    if routing == "uniform":
        return UniformRouter(options)
    raise UserError(f"Expected one of the routings {', '.join(get_args(Routing))}; got {routing!r}.")
