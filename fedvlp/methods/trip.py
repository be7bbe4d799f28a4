"""TRIP: an image's tokens choose, without parameters, how a few prompt experts are mixed for it.

Paper: Gong et al., "Token-level prompt mixture with parameter-free routing for federated domain generalization" (TRIP).

Symbols: x_0 .. x_N image tokens -> ``tokens`` [B, P, W]; E_m experts -> ``experts`` [E, L, D]; v_m keys -> ``keys``
[E, W]; s_m capacities; alpha -> ``train_capacity``, ``eval_capacity``; pi -> ``train_weights``, ``eval_weights``
[B, E]; beta -> ``kl_weight``; f(x) -> ``features``; p_zs -> ``teacher``.
    clusters under capacity, Eqs. 2-4         :func:`fedvlp.ops.capacity_kmeans`
    clusters to experts, Eqs. 5-7             :func:`fedvlp.ops.match_clusters`
    pi_m = tokens of m / tokens kept, IV-B    :func:`fedvlp.ops.routing_weights`
    E(x) = sum_m pi_m E_m, p(c | x), Eqs. 8-9 :meth:`TRIP.forward`
    CE + beta KL(p_zs || p), Eqs. 10-12       :meth:`TRIP.training_step`
    E_m <- sum_k |S_k| E_m,k / sum, Eq. 13    :class:`fedvlp.strategies.FedAvg`

Departures:
    * Experts start from different values; the released code starts all of them from the same one by mistake.
    * A clustering's random start is drawn from the image's own pixels, so that a route depends neither on the order of
      the files nor on the batch; the released code draws it from the global generator.
    * FedAvg weighs by training images; the released code by training and validation images. It also halves precision,
      decays the learning rate each round and deploys a Beta moving average, none of which the paper says.
    * The paper's multiplier step has no value; that of the released code, 1e-4, is used.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder, load_clip, zero_shot_text_features
from fedvlp.errors import UserError
from fedvlp.methods.zero_shot import ZeroShotCLIP
from fedvlp.module import FederatedModule
from fedvlp.ops import (
    cosine_logits,
    distillation_kl,
    image_seeds,
    key_start,
    orthogonal_keys,
    random_start,
    routing_weights,
    token_products,
)
from fedvlp.protocols import Batch, Inputs


class TRIP(FederatedModule):
    """Mixes prompt experts for each image, by where its tokens cluster.

    Args:
        class_names: The classes, in the order of the labels.
        clip: The frozen CLIP: a name, name and weights, or one that was loaded before.
        num_experts: Number of experts M.
        prompt_length: Number of learned vectors n of an expert.
        kl_weight: Weight beta of the divergence from zero-shot CLIP, at least 0.
        train_capacity: Capacity factor alpha in training: a cluster keeps at most alpha P / M of P tokens.
        eval_capacity: Capacity factor alpha in evaluation.
        templates: How many of CLIP's templates make the zero-shot teacher, in [1, 80].
        key_seed: Seed of the orthogonal keys, which the clients make themselves.
        cluster_start: Where clusters start: at ``random`` tokens, or at the tokens nearest to the ``keys``, our own
            proposal.
        optimizer: Makes the optimizer of a client's local training.
    """

    clip: CLIP
    prepare_options = (
        "class_names",
        "num_experts",
        "train_capacity",
        "eval_capacity",
        "templates",
        "key_seed",
        "cluster_start",
    )
    keys: Tensor

    def __init__(
        self,
        class_names: list[str],
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        num_experts: int = 4,
        prompt_length: int = 32,
        kl_weight: float = 0.8,
        train_capacity: float = 1.0,
        eval_capacity: float = 2.0,
        templates: int = 60,
        key_seed: int = 0,
        cluster_start: Literal["random", "keys"] = "random",
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=4e-4),
    ) -> None:
        super().__init__(optimizer)
        if num_experts < 1 or kl_weight < 0:
            raise UserError(f"TRIP needs at least one expert and a kl_weight >= 0; got {num_experts} and {kl_weight}.")
        self.save_hyperparameters(ignore=["clip", "optimizer"])
        self.adopt(load_clip(clip))
        self.class_names, self.kl_weight, self.templates = class_names, kl_weight, templates
        self.train_capacity, self.eval_capacity = train_capacity, eval_capacity
        self.key_seed, self.cluster_start = key_seed, cluster_start
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length)
        self.experts = nn.Parameter(torch.stack([self.text.initial_prompt() for _ in range(num_experts)]))  # [E, L, D]
        keys = orthogonal_keys(num_experts, self.clip.image_width, key_seed)
        self.register_buffer("keys", keys, persistent=False)  # made from a seed, so never sent

    def baseline(self) -> ZeroShotCLIP:
        """Returns zero-shot CLIP with the same towers."""
        return ZeroShotCLIP(self.class_names, self.clip)

    @cached_property
    def teacher_features(self) -> Float[Tensor, "C d"]:
        """The teacher's text features: the mean over its templates."""
        return zero_shot_text_features(self.clip, self.class_names, self.templates)

    def prepare(self, images: Float[Tensor, "B 3 H V"]) -> dict[str, Tensor]:
        """Returns f(x), pi under both capacities, and the teacher's logits."""
        features, tokens = self.clip.encode_image_tokens(images)
        if self.cluster_start == "keys":
            start = key_start(tokens, self.keys)
        else:
            start = random_start(image_seeds(images), tokens.shape[1], len(self.keys), self.key_seed)
        products = token_products(tokens)
        return {
            "features": features,
            "train_weights": routing_weights(tokens, self.keys, self.train_capacity, start, products),
            "eval_weights": routing_weights(tokens, self.keys, self.eval_capacity, start, products),
            "teacher": cosine_logits(features, self.teacher_features, self.clip.logit_scale),
        }

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Returns the logits cos(w_c(E(x)), f(x)) / tau under the mixture E(x) = sum_m pi_m E_m (Eqs. 8, 9)."""
        constants = self.constants(inputs)
        weights = constants["train_weights" if self.training else "eval_weights"]
        prompts = torch.einsum("be,eld->bld", weights, self.experts)  # [B, L, D]
        return cosine_logits(constants["features"], self.text(prompts), self.clip.logit_scale)

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Returns cross-entropy + beta KL(zero-shot || local) (Eq. 12)."""
        inputs, labels = batch
        constants = self.constants(inputs)
        logits = self(constants)
        cross_entropy = F.cross_entropy(logits, labels)
        divergence = distillation_kl(constants["teacher"], logits)
        self.log("cross_entropy", cross_entropy)
        self.log("kl", divergence)
        loss = cross_entropy + self.kl_weight * divergence
        self.log("loss", loss)
        return loss
