"""TRIP: a few prompt experts, mixed for each image by parameter-free routing of its tokens.

Paper: Gong et al., "Token-level prompt mixture with parameter-free routing for federated domain generalization" (TRIP).

Symbols: x_0 .. x_N image tokens -> ``tokens`` [B, P, W]; E_m experts -> ``experts`` [E, L, D]; v_m keys ->
``router.keys`` [E, W]; C_m cluster with mean mu_m; alpha -> ``train_capacity``, ``eval_capacity``; pi -> ``weights``
[B, E]; f(x) -> ``features``; p_zs of zero-shot CLIP -> ``teacher``; beta -> ``kl_weight``.
    clusters under capacity, Eqs. 2-4         :func:`.capacity_kmeans`
    clusters to experts, Eqs. 5-7             :func:`.match_clusters`
    pi_m = tokens of m / tokens kept, IV-B    :class:`.TokenRouter`
    E(x) = sum_m pi_m E_m, p(c | x), Eqs. 8-9 :meth:`TRIP.forward`
    CE + beta KL(p_zs || p), Eqs. 10-12       :func:`.distillation_losses`
    E_m <- sum_k |S_k| E_m,k / sum, Eq. 13    :class:`.FedAvg`
With several labels, KL becomes the sum over all labels of KL(p_zs(l | x) || p(l | x)), of Bernoulli distributions.

Deviations:
    * Start of experts: The released code makes all from one tensor, so they start equal (``same_start``); fedvlp draws
      each separately.
    * Start of the clusters: The released code draws it from one generator for all images. In fedvlp, it depends only on
      the image's pixels, so a route does not depend on file order or batch.
    * Average: The released code weights by training and validation images and averages in half precision; fedvlp
      weights by training images and averages in float32.
    * Schedule, moving average: The paper has neither; the released code has both, and fedvlp offers them as options.
    * Clusters: Eqs. 3 and 4 of the paper use squared distances and do not state the step size of theta_m, the
      multiplier of a capacity. In fedvlp, cost and step size are the released code's: ||x - mu_m|| + theta_m, and
      1e-4. Both update theta_m by the sizes after capping, so theta_m never exceeds 0.
    * Routers: :mod:`.routers` lists the choices that the paper leaves open.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder, ZeroShotClassifier, cosine_logits
from fedvlp.core.phases import Phase
from fedvlp.core.protocols import Inputs, Targets
from fedvlp.core.strategies import MovingAverage, beta_share, ema_share
from fedvlp.methods.prompts import PromptLearner, distillation_losses
from fedvlp.methods.trip.routers import LearnedRouter, RouterOptions, Routing, make_router
from fedvlp.methods.trip.routing import KeyInit
from fedvlp.utils.ranges import Names, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Seed, Templates


class TRIP(PromptLearner):
    """Prompt experts, mixed for each image by the clusters of its tokens.

    Args:
        num_experts: Number of experts M.
        prompt_length: Number of learned vectors n of an expert.
        kl_weight: Weight beta of the divergence from zero-shot CLIP, at least 0.
        train_capacity: Capacity factor alpha in training: a cluster keeps alpha P / M of P tokens; null for no limit.
        eval_capacity: Capacity factor alpha in evaluation.
        templates: Number of CLIP's templates averaged for the zero-shot teacher, in [1, 80].
        key_seed: Seed of the keys, which each client creates itself, and of everything random in routing.
        key_init: Distribution of the keys' elements (Table VI).
        matched_to: Targets of the token clusters: static ``keys``, or the current ``experts`` (Table V).
        cluster_start: Initial centroids: ``random`` tokens, or the tokens nearest to the ``keys`` (fedvlp's proposal).
        routing: Source of pi: clusters of tokens (``token``), a trained layer (``learned_token``, ``learned_image``,
            Fig. 3), equal weights (``uniform``), or random draws per image (``random``) or token (``random_tokens``,
            Table V).
        same_start: Whether all experts start from the same values, as in the released code.
        server_average: Deployed moving average over rounds: none, with Beta(0.2) weights as in the released code, or
            with momentum 0.99 (EMA).
        rounds: Number of training rounds, needed by ``server_average: beta``.

    >>> TRIP(["cat", "dog"], clip="fedvlp-tiny", num_experts=2, prompt_length=4).experts.shape
    torch.Size([2, 4, 64])
    """

    supports_several_labels = True
    precompute_options = tuple(field.name for field in fields(RouterOptions))

    def __init__(  # noqa: PLR0913  (the paper's options)
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        num_experts: PositiveInt = 4,
        prompt_length: PositiveInt = 32,
        kl_weight: NonNegativeFloat = 0.8,
        train_capacity: PositiveFloat | None = 1.0,
        eval_capacity: PositiveFloat | None = 2.0,
        templates: Templates = 60,
        key_seed: Seed = 0,
        key_init: KeyInit = "orthogonal",
        matched_to: Literal["keys", "experts"] = "keys",
        cluster_start: Literal["random", "keys"] = "random",
        routing: Routing = "token",
        same_start: bool = False,
        server_average: Literal["none", "beta", "ema"] = "none",
        rounds: NonNegativeInt = 15,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=4e-4),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        if server_average != "beta":  # so that a run may be resumed for more rounds
            self.hparams.pop("rounds", None)
        self.kl_weight = kl_weight
        self.server_average = server_average
        self.rounds = rounds
        options = RouterOptions(**{field.name: self.hparams[field.name] for field in fields(RouterOptions)})
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length)
        experts = torch.stack([self.text.initial_prompt() for _ in range(num_experts)])  # [E, L, D]
        # same_start repeats the last draw, so both settings draw equally many random values.
        self.experts = nn.Parameter(experts[-1:].repeat(num_experts, 1, 1) if same_start else experts)
        self.router = make_router(options, self.clip)
        self.broadcast_once = ("router.keys",) if hasattr(self.router, "keys") else ()
        self.teacher = ZeroShotClassifier(self.clip, class_names, templates)

    def configure_phases(self) -> Sequence[Phase]:
        """Describe the only phase: train, send and average the experts and a learned router (Eq. 13)."""
        (phase,) = super().configure_phases()
        if self.server_average == "none":
            return (phase,)
        is_beta = self.server_average == "beta"
        share = beta_share(0.2, self.rounds, repeats_first=True) if is_beta else ema_share(0.99)
        return (replace(phase, strategy=MovingAverage(phase.strategy, share, phase.upload)),)

    def precompute(self, images: Float[Tensor, "B 3 V V"]) -> dict[str, Tensor]:
        """Compute f(x) and the router's input; for the paper's router, this is pi."""
        # One pass through the tower gives both the feature to classify and the tokens to cluster.
        features, tokens = self.clip.encode_image_tokens(images)
        routes = self.router.precompute(images, features, tokens)
        return {"features": features, **routes}

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits cos(w_c(E(x)), f(x)) / tau under the mixture E(x) = sum_m pi_m E_m (Eqs. 8, 9)."""
        constants = self.precomputed(inputs)
        weights = self.router(constants, self.expert_features)
        # Each image has its own prompt, so a step encodes all texts B times; packing saves time.
        prompts = torch.einsum("be,eld->bld", weights, self.experts)  # [B, L, D]
        return cosine_logits(constants["features"], self.text(prompts), self.clip.logit_scale)

    @torch.no_grad()
    def expert_features(self) -> Float[Tensor, "E d"]:
        """Compute each expert's feature in the joint space: the mean over classes of its text features."""
        return F.normalize(self.text(self.experts), dim=-1).mean(dim=1)

    def losses(self, inputs: Inputs, labels: Targets) -> dict[str, Tensor]:
        """Compute cross-entropy + beta KL(zero-shot || local) (Eq. 12), and a learned router's balance loss."""
        constants = self.precomputed(inputs)
        losses = distillation_losses(self(constants), labels, self.teacher(constants["features"]), self.kl_weight)
        # Without the balance loss, a learned router sends everything to one expert.
        if isinstance(self.router, LearnedRouter):
            losses["loss"] = losses["loss"] + self.router.balance_weight * self.router.imbalance(constants)
        return losses
