"""Routers of TRIP: from an image to the weights pi of the prompt experts.

Each has `prepare`, whose tensors never change for an image and are cached, and `forward`, which makes pi of them.

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

from jaxtyping import Float, Int
from torch import Tensor, nn

from fedvlp.clip import CLIP
from fedvlp.methods.trip.cluster_routers import ExpertMatchingRouter, ImageRouter, TokenRouter
from fedvlp.methods.trip.hashing import image_seeds, random_shares, random_token_shares
from fedvlp.methods.trip.options import Experts, RouterOptions
from fedvlp.ops import load_balance
from fedvlp.utils.errors import UserError


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
        self.options, self.seed, self.balance_weight = options, options.key_seed, balance_weight
        self.linear = nn.Linear(width, options.num_experts)

    def prepare(self, images: Tensor, features: Tensor, tokens: Tensor) -> dict[str, Tensor]:
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
        self.options, self.seed = options, options.key_seed

    def prepare(self, images: Tensor, features: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Returns pi."""
        seeds, experts = image_seeds(images), self.options.num_experts
        if self.options.routing == "random":
            return {"weights": random_shares(seeds, experts, self.seed)}
        return {"weights": random_token_shares(seeds, tokens.shape[1], experts, self.seed)}

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
        self.options, self.seed = options, options.key_seed

    def prepare(self, images: Tensor, features: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Returns nothing."""
        return {}

    def forward(self, constants: dict[str, Tensor], experts: Experts) -> Float[Tensor, "B E"]:
        """Returns pi = 1 / M."""
        features = constants["features"]
        return features.new_full((len(features), self.options.num_experts), 1 / self.options.num_experts)


Router = TokenRouter | ExpertMatchingRouter | ImageRouter | LearnedRouter | RandomRouter | UniformRouter


def token_experts(
    router: Router, images: Float[Tensor, "B 3 H V"], tokens: Float[Tensor, "B P W"], experts: Experts
) -> Int[Tensor, "B P"] | None:
    """Returns the expert of each token in evaluation, the likeliest of a learned router, -1 for a dropped token.

    None where no token has an expert of its own.
    """
    if isinstance(router, (TokenRouter, ExpertMatchingRouter)):
        return router.token_experts(images, tokens, experts)
    if isinstance(router, LearnedRouter) and router.options.routing == "learned_token":
        return router.probabilities({"tokens": tokens}).argmax(dim=-1)
    return None


def make_router(options: RouterOptions, clip: CLIP) -> Router:
    """Returns the router that the options ask for.

    Raises:
        UserError: If there is no such routing.
    """
    if options.routing == "token":
        is_keyed = options.matched_to == "keys"
        return TokenRouter(options, clip.image_width) if is_keyed else ExpertMatchingRouter(options, clip)
    if options.routing == "image":
        return ImageRouter(options, clip.embed_dim)
    if options.routing in ("learned_token", "learned_image"):
        return LearnedRouter(options, clip.image_width if options.routing == "learned_token" else clip.embed_dim)
    if options.routing in ("random", "random_tokens"):
        return RandomRouter(options)
    if options.routing == "uniform":
        return UniformRouter(options)
    raise UserError(f"TRIP knows no routing {options.routing!r}. Use token, image, uniform, random or a learned one.")
