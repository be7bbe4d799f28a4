"""DoPrompt: a prompt for each source domain, an adapter that mixes them for each image, and a trained image tower.

Paper: Zheng et al., "Prompt Vision Transformer for Domain Generalization", arXiv 2208.08914. A centralised method.

Symbols: v_k prompt of source domain k, L x W -> ``prompts`` [K, L, W]; A adapter -> ``adapter``; f(x) feature of an
image, f(x; v) with a prompt among the image's tokens -> ``prompted``; d(x) domain of an image;
a_kl(x) -> :meth:`DoPrompt.domain_weights`; lambda -> ``domain_weight``.
    L_dp = CE(f(x; v_d(x)), y)                                 domain prompt learning
    a_.l(x) = softmax_k A(f(x))_kl,  v(x)_l = sum_k a_kl(x) v_kl   the adapted prompt, :meth:`DoPrompt.adapted`
    L_a = CE(f(x; v(x)), y),  L_w = BCE(a_kl(x), [k = d(x)])   prompt adapter learning
    L = L_dp + L_a + lambda L_w                                :meth:`DoPrompt.losses`
Classification uses v(x) and needs no domain label.

Deviations:
    * Network: The paper trains an ImageNet ViT and a linear layer; fedvlp trains CLIP's image tower with CLIP's text
      features, as fine-tuning does.
    * Adapter: The released code's adapter reads the class token before the head; fedvlp's reads the joint feature.
      Neither has a gradient. The adapter of fedvlp has one hidden layer with ReLU, four times as wide as the tower.
    * Optimizer: Rates and weight decays are as released, without decay of the tower's vectors or dropout.
    * Position: Like the released code, fedvlp puts prompts after the image's tokens, before CLIP's first norm.
    * Batches: The paper draws equally from each domain; fedvlp draws from the pool of all, as in other centralised
      runs.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.protocols import Inputs
from fedvlp.core.state import select
from fedvlp.methods.image_tower import ImageTowerLearner, layer_groups, prompted_features
from fedvlp.methods.prompts import image_domains, initial_prompt
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveFloat, PositiveInt


class DoPrompt(ImageTowerLearner):
    """CLIP's image tower with a prompt for each source domain, and an adapter that mixes them for an image.

    Args:
        domains: Source domains.
        prompt_length: Number of learned vectors L per domain.
        domain_weight: Weight lambda of the loss that teaches the adapter an image's domain, at least 0.
        prompt_lr: Learning rate of the prompts; the optimizer's own rate applies only to the tower.
        adapter_lr: Learning rate of the adapter.
        prompt_weight_decay: Weight decay of prompts and adapter, at least 0.
    """

    needs_domains = True

    def __init__(  # noqa: PLR0913  (the paper's options)
        self,
        class_names: Names,
        domains: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        prompt_length: PositiveInt = 4,
        domain_weight: NonNegativeFloat = 1.0,
        prompt_lr: PositiveFloat = 1e-3,
        adapter_lr: PositiveFloat = 1e-4,
        prompt_weight_decay: NonNegativeFloat = 1e-5,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=5e-6, weight_decay=0.01),
    ) -> None:
        super().__init__(class_names, clip, layer_decay=1.0, optimizer=optimizer)
        self.width = self.image_tower.require_prompts().width  # token width W; an error if the tower accepts no prompts
        self.domain_weight = domain_weight
        self.rates = {"prompts": prompt_lr, "adapter": adapter_lr}
        self.prompt_weight_decay = prompt_weight_decay
        self.prompts = nn.Parameter(initial_prompt((len(domains), prompt_length, self.width)))  # [K, L, W]
        scores = len(domains) * prompt_length
        self.adapter = nn.Sequential(
            nn.Linear(self.clip.embed_dim, 4 * self.width), nn.ReLU(), nn.Linear(4 * self.width, scores)
        )

    def domain_weights(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B K L"]:
        """Compute a_kl(x), each domain's share in each of an image's prompt vectors; they sum to 1 over domains."""
        with torch.no_grad():
            features = self.image_features(images)
        domains, length, _ = self.prompts.shape
        # One score per domain and prompt vector.
        scores: Tensor = self.adapter(features).unflatten(-1, (domains, length))
        return scores.softmax(1)

    def adapted(self, weights: Float[Tensor, "B K L"]) -> Float[Tensor, "B L W"]:
        """Compute v(x), the mixture of the domains' prompts under the given weights."""
        return torch.einsum("bkl,klw->blw", weights, self.prompts)

    def prompted(self, images: Float[Tensor, "B 3 V V"], prompts: Float[Tensor, "B L W"]) -> Float[Tensor, "B C"]:
        """Compute the logits of images, each with its own prompt."""
        return self.logits(prompted_features(self.image_tower.require_prompts(), images, [prompts]))

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits of a batch with adapted prompts, without domain labels."""
        images = self.precomputed(inputs)["images"]
        return self.prompted(images, self.adapted(self.domain_weights(images)))

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute L_dp + L_a + lambda L_w."""
        domains = image_domains(inputs, "DoPrompt")
        images = self.precomputed(inputs)["images"]
        weights = self.domain_weights(images)
        # The target of every vector of a prompt is the image's domain.
        is_domain = F.one_hot(domains, len(self.prompts)).float()[..., None].expand_as(weights)
        with torch.autocast(weights.device.type, enabled=False):  # PyTorch refuses this loss under a GPU's autocast
            domain_loss = F.binary_cross_entropy(weights.float(), is_domain)
        losses = {
            "domain_prompts": F.cross_entropy(self.prompted(images, self.prompts[domains]), labels),
            "adapted_prompts": F.cross_entropy(self.prompted(images, self.adapted(weights)), labels),
            "domains": self.domain_weight * domain_loss,
        }
        return {**losses, "loss": torch.stack(list(losses.values())).sum()}

    def parameter_groups(self, trainable: Mapping[str, Tensor]) -> list[Any]:
        """Group the trained parameters, with separate options for prompts and adapter."""
        groups = layer_groups(select(trainable, ["visual"]), self.layer_decay)
        # Prompts and adapter are new and learn faster than the tower.
        for part, rate in self.rates.items():
            options = {"lr": rate, "weight_decay": self.prompt_weight_decay, "factor": 1.0, "decays": True}
            groups.append({"params": list(select(trainable, [part]).values()), **options})
        return groups
