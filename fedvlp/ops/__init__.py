"""Pure functions on tensors: losses, clustering with capacities, routing, hashing."""

from fedvlp.ops.clustering import Clusters, capacity_kmeans, cluster_capacities
from fedvlp.ops.hashing import image_seeds, random_start
from fedvlp.ops.lloyd import token_products
from fedvlp.ops.losses import cosine_logits, distillation_kl
from fedvlp.ops.routing import key_start, match_clusters, orthogonal_keys, routing_weights

__all__ = [
    "Clusters",
    "capacity_kmeans",
    "cluster_capacities",
    "cosine_logits",
    "distillation_kl",
    "image_seeds",
    "key_start",
    "match_clusters",
    "orthogonal_keys",
    "random_start",
    "routing_weights",
    "token_products",
]
