"""FedPuReL: a shared prompt trained by purified gradients, and personal prompts whose logits correct it.

Paper: Hou et al., "Fine-Tuning Impairs the Balancedness of Foundation Models in Long-Tailed Personalized Federated
Learning", CVPR 2026, arXiv 2605.02247. Its equations were not available, so the symbols follow the released code.

Symbols: p_G, p_L, L x D -> ``global_prompt``, ``local_prompt``; z_G, z_L logits under them; z zero-shot CLIP's logits;
H(z) entropy of softmax(z); alpha -> ``residual_weight``.
    h = (H(z) + H(z_G)) / 2, H(z / T) = H(z_G / T_G) = h, per image       :func:`matched_temperatures`
    L_ce(z_G), L_kl = KL(softmax(z / T) || softmax(z_G / T_G))            phase "global"
    p_G moves by G_ce, without the part that opposes G_kl                 :func:`.aligned_gradient`
    p_G <- sum_k |S_k| p_G,k / sum_k |S_k|                                :class:`.FedAvg`
    alpha L_ce(z_L) + (1 - alpha) L_ce(z_G + z_L) of p_L, p_G is frozen   phase "residual"; p_L stays
    p(c | x) = softmax_c(z_G + z_L)                                       :meth:`FedPuReL.forward`

Deviations:
    * Optimizer: The released code trains p_L by SGD without momentum or weight decay; fedvlp has one optimizer for
      both prompts. The released rate follows a cosine in each round; in fedvlp, it is constant.
    * Clients: In the released code, all clients train in the first round and 40 % in each other round; in fedvlp,
      ``trainer.clients.cohort_size`` has one value for all rounds.
    * Held-out domains: fedvlp classifies their images by p_G, because such a domain has no client and so no p_L.
    * Others: The released code also trains LoRA or an adapter in this way; fedvlp has only its default, prompts.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, ZeroShotClassifier, cosine_logits
from fedvlp.core.phases import Phase
from fedvlp.core.protocols import Batch, Inputs, Targets
from fedvlp.core.strategies import Local, Strategy
from fedvlp.methods.fed_med_clip import entropies
from fedvlp.methods.prograd import aligned_gradient
from fedvlp.methods.prompts import PersonalPromptLearner, distillation_kl
from fedvlp.utils.ranges import ClosedFraction, Names, PositiveInt


class FedPuReL(PersonalPromptLearner):
    """A shared prompt that stays close to zero-shot CLIP's balance, and a personal prompt for the residual.

    Args:
        residual_weight: Weight alpha of the personal prompt's own cross-entropy, in [0, 1].
        prompt_length: Number of learned vectors L of a prompt.
        options: Evaluation of held-out domains, as in :class:`.PersonalPromptLearner`.
    """

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        residual_weight: ClosedFraction = 0.99,
        prompt_length: PositiveInt = 4,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.001, momentum=0.9, weight_decay=5e-4),
        **options: Any,
    ) -> None:
        super().__init__(class_names, clip, prompt_length=prompt_length, optimizer=optimizer, **options)
        self.residual_weight = residual_weight
        self.teacher = ZeroShotClassifier(self.clip, class_names, templates=1)

    def configure_phases(self) -> Sequence[Phase]:
        """Describe both phases; the second one needs the first one's average."""
        shared = ("global_prompt",)
        return (
            Phase("global", shared, shared, self.strategy, download=shared),
            Phase("residual", ("local_prompt",), (), Receive(), download=shared),
        )

    def logits(self, features: Float[Tensor, "B d"], prompt: Float[Tensor, "L D"]) -> Float[Tensor, "B C"]:
        """Compute the logits under a prompt."""
        return cosine_logits(features, self.text(prompt), self.clip.logit_scale)

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute z_G + z_L, or z_G if there is no client."""
        features = self.precomputed(inputs)["features"]
        shared = self.logits(features, self.global_prompt)
        return shared + self.logits(features, self.local_prompt) if self.uses_personal else shared

    def local_logits(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute z_G in the first phase, otherwise z_G + z_L."""
        if self.context is not None and self.context.phase.name == "global":
            return self.logits(self.precomputed(inputs)["features"], self.global_prompt)
        return super().local_logits(inputs)

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Compute the loss of the phase, or of both prompts without a federation."""
        inputs, labels = batch
        features = self.precomputed(inputs)["features"]
        losses: dict[str, Tensor] = {}
        if self.context is None or self.context.phase.name == "global":
            losses |= self.global_losses(features, labels)
        if self.context is None or self.context.phase.name == "residual":
            losses["residual"] = self.residual_loss(features, labels)
        self.log_dict(losses)
        return torch.stack([losses[name] for name in ("loss", "residual") if name in losses]).sum()

    def global_losses(self, features: Float[Tensor, "B d"], labels: Targets) -> dict[str, Tensor]:
        """Compute L_ce and L_kl of p_G; `loss` has the value of L_ce and the purified gradient."""
        start = self.global_prompt.detach()
        prompt = start.clone().requires_grad_()
        logits = self.logits(features, prompt).float()
        teacher = self.teacher(features).float()
        target = (entropies(teacher) + entropies(logits.detach())) / 2
        soft_teacher = teacher / matched_temperatures(teacher, target)
        divergence = distillation_kl(soft_teacher, logits / matched_temperatures(logits.detach(), target))
        cross_entropy = self.loss(logits, labels)
        # Take both gradients with respect to a copy of the prompt, so that the optimizer does not see them.
        (domain,) = torch.autograd.grad(cross_entropy, prompt, retain_graph=True)
        (general,) = torch.autograd.grad(divergence, prompt)
        step = ((self.global_prompt - start) * aligned_gradient(domain, general, 1.0)).sum()
        return {"cross_entropy": cross_entropy, "kl": divergence, "loss": cross_entropy.detach() + step}

    def residual_loss(self, features: Float[Tensor, "B d"], labels: Targets) -> Float[Tensor, ""]:
        """Compute alpha L_ce(z_L) + (1 - alpha) L_ce(z_G + z_L); p_G gets no gradient."""
        local = self.logits(features, self.local_prompt)
        shared = self.logits(features, self.global_prompt.detach())
        alpha = self.residual_weight
        return alpha * self.loss(local, labels) + (1 - alpha) * self.loss(shared + local, labels)


class Receive(Local):
    """Send the shared tensors to clients, which upload nothing."""

    broadcast = Strategy.broadcast


def matched_temperatures(logits: Float[Tensor, "B C"], target: Float[Tensor, "B"]) -> Float[Tensor, "B 1"]:
    """Find each image's temperature T in [0.05, 20] with H(logits / T) = target, by bisection.

    >>> matched_temperatures(torch.tensor([[6.0, 0.0]]), entropies(torch.tensor([[2.0, 0.0]]))).round(decimals=4)
    tensor([[3.]])
    """
    low, high = torch.full_like(target, 0.05), torch.full_like(target, 20.0)
    for _ in range(30):  # to float32's precision
        middle = (low + high) / 2
        is_above = entropies(logits / middle[:, None]) > target  # entropy rises with the temperature
        low, high = torch.where(is_above, low, middle), torch.where(is_above, middle, high)
    return (low + high)[:, None] / 2
