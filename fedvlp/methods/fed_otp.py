"""FedOTP: a shared prompt and the client's personal prompt divide the patches of an image by optimal transport.

Paper: Li et al., "Global and Local Prompts Cooperation via Optimal Transport for Federated Learning", CVPR 2024.

Symbols: p_g, p_l, L x D -> ``global_prompt``, ``local_prompt``; G_m, joint feature of patch m of M -> ``patches``;
H_nc, text feature of class c under prompt n of N -> ``texts``; gamma -> ``mass``; lambda -> ``epsilon``.
    C_nm = 1 - cos(G_m, H_nc)                                        :func:`.transport_logits`
    T = argmin <C, T> + lambda <T, log T>,                           :func:`.transport_plan`
        over T >= 0 with sum_n T_nm <= 1 / M and sum_m T_nm = gamma / N
    p(c | x) = softmax_c((1 - <C, T>) / tau), cross-entropy          :meth:`.PromptLearner.training_step`
    p_g <- sum_k |S_k| p_g,k / sum_k |S_k|; p_l stays                :class:`.FedAvg`

Deviations:
    * Held-out domains: fedvlp assigns the whole mass gamma to p_g, because such a domain has no client and so no p_l.
    * Iterations: The released code stops when the mean change over a batch is below 0.001; fedvlp runs all iterations,
      because an image's class would otherwise depend on its batch.
    * Values: The released default lambda is 0.1, the scripts' is 0.01; fedvlp uses 0.1, and the scripts' gamma of 0.8.
    * Towers: The released code rewrites ResNets' attention pool to get patches in the joint space; fedvlp needs a ViT.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.protocols import Inputs
from fedvlp.methods.prompts import PersonalPromptLearner
from fedvlp.methods.transport import patch_features, transport_logits
from fedvlp.utils.ranges import FractionAboveZero, Names, PositiveFloat, PositiveInt


class FedOTP(PersonalPromptLearner):
    """A shared and a personal prompt, between which an image's patches are divided.

    Args:
        mass: Share gamma of the patches' mass transported to the prompts, in (0, 1].
        epsilon: Weight lambda of the plan's entropy.
        iterations: Number of iterations that compute the plan.
        options: Prompt length, evaluation of held-out domains and optimizer, as in :class:`.PersonalPromptLearner`.
    """

    needs_images = True  # f(x) does not contain the patches

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        mass: FractionAboveZero = 0.8,
        epsilon: PositiveFloat = 0.1,
        iterations: PositiveInt = 100,
        **options: Any,
    ) -> None:
        super().__init__(class_names, clip, **options)
        self.transport = partial(transport_logits, mass=mass, epsilon=epsilon, iterations=iterations)
        self.clip.image.project(torch.zeros(1, self.clip.image_width))  # raises an error now if not supported

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits <cos, T> / tau, which equal (1 - <C, T>) / tau up to a constant."""
        _, patches = patch_features(self.clip, self.precomputed(inputs)["images"])
        # A held-out domain has no local prompt.
        prompts = [self.global_prompt, self.local_prompt] if self.uses_personal else [self.global_prompt]
        texts = torch.stack([self.text(prompt) for prompt in prompts])  # [N, C, d]
        return self.transport(patches, texts, self.clip.logit_scale)
