"""Functions on tensors: losses, clustering with capacities, routing, hashing; and prompt aggregators."""

from fedvlp.ops.clustering import Clusters, capacity_kmeans, cluster_capacities
from fedvlp.ops.correspondence import pairs_correspondence
from fedvlp.ops.domain_prompts import domain_terms, ensemble_logits, given_class, given_domain, pair_logits, query_terms
from fedvlp.ops.hashing import (
    image_seeds,
    random_shares,
    random_start,
    random_token_shares,
    random_uniforms,
)
from fedvlp.ops.lloyd import token_products
from fedvlp.ops.losses import cosine_logits, distillation_kl, load_balance
from fedvlp.ops.prompt_aggregation import AttentionOverClients, PromptAttention
from fedvlp.ops.route_statistics import agreement, correlations
from fedvlp.ops.routing import (
    KeyInit,
    cluster_experts,
    cluster_shares,
    expert_shares,
    image_routing_weights,
    key_start,
    make_keys,
    match_clusters,
    orthogonal_keys,
    routing_weights,
    token_clusters,
)

__all__ = [
    "AttentionOverClients",
    "Clusters",
    "KeyInit",
    "PromptAttention",
    "agreement",
    "capacity_kmeans",
    "cluster_capacities",
    "cluster_experts",
    "cluster_shares",
    "correlations",
    "cosine_logits",
    "distillation_kl",
    "domain_terms",
    "ensemble_logits",
    "expert_shares",
    "given_class",
    "given_domain",
    "image_routing_weights",
    "image_seeds",
    "key_start",
    "load_balance",
    "make_keys",
    "match_clusters",
    "orthogonal_keys",
    "pair_logits",
    "pairs_correspondence",
    "query_terms",
    "random_shares",
    "random_start",
    "random_token_shares",
    "random_uniforms",
    "routing_weights",
    "token_clusters",
    "token_products",
]
