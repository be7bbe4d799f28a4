"""Routers without parameters: clusters of tokens or of images, matched one to one with keys or experts."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedvlp.clip import CLIP
from fedvlp.clip.prompted_image import project_image_tokens
from fedvlp.methods.trip.clustering import Clusters
from fedvlp.methods.trip.hashing import image_seeds, random_start, random_uniforms
from fedvlp.methods.trip.options import Experts, RouterOptions
from fedvlp.methods.trip.routing import (
    cluster_shares,
    expert_shares,
    image_routing_weights,
    key_start,
    match_clusters,
    token_clusters,
)
from fedvlp.utils.errors import UserError


class TokenRouter(nn.Module):
    """The share of an image's tokens in the cluster matched to each key (Eqs. 2 to 8).

    Args:
        options: What it is made from.
        width: W, the width of a token.
    """

    keys: Tensor

    def __init__(self, options: RouterOptions, width: int) -> None:
        super().__init__()
        self.options = options
        self.seed = options.key_seed
        self.register_buffer("keys", options.keys(width), persistent=False)  # made from a seed

    def precompute(self, images: Tensor, features: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Returns pi under both capacities, and which share of the tokens was kept."""
        constants = {}
        for mode, clusters in self._clusters(images, tokens).items():
            constants[f"{mode}_weights"] = expert_shares(clusters, self.keys)
            constants[f"{mode}_kept"] = clusters.sizes.sum(dim=1) / tokens.shape[1]
        return constants

    def forward(self, constants: dict[str, Tensor], experts: Experts) -> Float[Tensor, "B E"]:
        """Returns pi."""
        return constants["train_weights" if self.training else "eval_weights"]

    def token_experts(self, images: Tensor, tokens: Tensor, experts: Experts) -> Int[Tensor, "B P"]:
        """Returns the expert of each token in evaluation, -1 for a token that was dropped."""
        clusters = self._clusters(images, tokens)["eval"]
        return _experts_of_tokens(clusters, match_clusters(clusters.centroids, self.keys))

    def _clusters(self, images: Tensor, tokens: Tensor) -> dict[str, Clusters]:
        start = key_start(tokens, self.keys) if self.options.cluster_start == "keys" else None
        return clusters_by_mode(self.options, self.seed, images, tokens, start)


class ExpertMatchingRouter(nn.Module):
    """Clusters matched to the experts themselves as they stand, by cosine in the joint space (Table V, without keys).

    A cluster is Proj(ln_post(mu_i)) there, an expert the mean over classes of its text features.

    Args:
        options: What it is made from.
        clip: The frozen CLIP, shared and not copied.
    """

    def __init__(self, options: RouterOptions, clip: CLIP) -> None:
        super().__init__()
        self.options = options
        self.seed = options.key_seed
        self._project = partial(project_image_tokens, clip)  # not a submodule, which it would be saved with

    def precompute(self, images: Tensor, features: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Returns the clusters' centroids and shares under both capacities, and which share of the tokens was kept."""
        constants = {}
        for mode, clusters in clusters_by_mode(self.options, self.seed, images, tokens).items():
            constants[f"{mode}_centroids"] = self._project(clusters.centroids.to(tokens.dtype))
            constants[f"{mode}_shares"] = cluster_shares(clusters)
            constants[f"{mode}_kept"] = clusters.sizes.sum(dim=1) / tokens.shape[1]
        return constants

    @torch.no_grad()
    def forward(self, constants: dict[str, Tensor], experts: Experts) -> Float[Tensor, "B E"]:
        """Returns pi under the experts' present values; the assignment has no gradient."""
        mode = "train" if self.training else "eval"
        shares = constants[f"{mode}_shares"]
        matched = match_clusters(constants[f"{mode}_centroids"], experts())
        return torch.zeros_like(shares).scatter_(1, matched, shares)

    def token_experts(self, images: Tensor, tokens: Tensor, experts: Experts) -> Int[Tensor, "B P"]:
        """Returns the expert of each token in evaluation, -1 for a token that was dropped."""
        clusters = clusters_by_mode(self.options, self.seed, images, tokens)["eval"]
        matched = match_clusters(self._project(clusters.centroids.to(tokens.dtype)), experts())
        return _experts_of_tokens(clusters, matched)


class ImageRouter(nn.Module):
    """One expert for each image: that of its cluster among the images of the batch (Sec. V-F, parameter-free).

    Args:
        options: What it is made from.
        width: d, the width of an image's feature.
    """

    keys: Tensor

    def __init__(self, options: RouterOptions, width: int) -> None:
        super().__init__()
        self.options = options
        self.seed = options.key_seed
        self.register_buffer("keys", options.keys(width), persistent=False)  # made from a seed

    def precompute(self, images: Tensor, features: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Returns each image's lot; the images of the lowest lots are where the clusters of their batch start."""
        return {"lots": random_uniforms(image_seeds(images), 1, self.seed)[:, 0].float()}

    @torch.no_grad()
    def forward(self, constants: dict[str, Tensor], experts: Experts) -> Float[Tensor, "B E"]:
        """Returns pi, a single expert for all images but those that found no room."""
        if torch.compiler.is_exporting():
            raise UserError(
                "TRIP with routing: image classifies an image by the others of its batch, which no file can. "
                "Export a TRIP with another routing."
            )
        features = constants["features"].float()
        options = self.options
        if options.cluster_start == "keys" and len(features) >= options.num_experts:
            start = key_start(features[None], self.keys)[0]
        else:
            start = constants["lots"].argsort(stable=True)[: options.num_experts]
        capacity = options.train_capacity if self.training else options.eval_capacity
        return image_routing_weights(features, self.keys, capacity, start)


def _experts_of_tokens(clusters: Clusters, experts: Int[Tensor, "B E"]) -> Int[Tensor, "B P"]:
    """The expert that the cluster of each token is matched to, -1 for a token in no cluster."""
    clustered = clusters.assignment
    return experts.gather(1, clustered.clamp(min=0)).masked_fill(clustered < 0, -1)


def clusters_by_mode(
    options: RouterOptions, seed: int, images: Tensor, tokens: Tensor, start: Tensor | None = None
) -> dict[str, Clusters]:
    """Returns each image's clusters under the capacities of training and of evaluation, from the same start.

    What is exported is never trained, so it has those of evaluation alone.

    Args:
        options: Number of experts and capacities.
        seed: Seed of a random start.
        images: Whose pixels seed a random start too.
        tokens: Each image's tokens.
        start: Where the clusters start; at random if not given.
    """
    if start is None:
        start = random_start(image_seeds(images), tokens.shape[1], options.num_experts, seed)
    capacities = {"train": options.train_capacity, "eval": options.eval_capacity}
    if torch.compiler.is_exporting():
        del capacities["train"]
    clusters = token_clusters(tokens, options.num_experts, list(capacities.values()), start)
    return dict(zip(capacities, clusters, strict=True))
