"""DP-FPL: a shared prompt plus a personal prompt per client, whose gradient gets noise in two low-rank factors.

Paper: Tran et al., "Privacy-Preserving Personalized Federated Prompt Learning for Multimodal Large Language Models",
ICLR 2025.

Symbols: p_G, p_L, L x D -> ``global_prompt``, ``local_prompt``; k -> ``rank``; C_th -> ``clip_norm``; u, L x k, and v,
k x D, recomputed in each step -> ``left``, ``right``; g gradient of a batch's loss by p -> ``gradient``; sigma_L ->
``local_noise_multiplier`` times C_th; clip limits the norm to C_th.
    p = p_G + p_L, p_L = u v + r                                        Sec. 3.2; :meth:`DPFPL.client_prompt`
    u = orth(p_L v_0), v = orth(p_L^T u)^T, v_0 ~ N(0, 1)               Sec. 3.4; :func:`factorized`
    g_u = clip(g v^T) + N(0, sigma_L^2), g_v = clip(u^T g) + N(0, sigma_L^2)
                                                                        Alg. 1, lines 9, 10; :func:`factor_gradients`
    g_L = g_u v + u g_v - u u^T g_u v                                   Eq. 4; :func:`local_gradient`
    p_L <- p_L - eta g_L                                                Alg. 1, line 12; :meth:`DPFPL.losses`
    p_G <- p_G - eta (mean_i clip(g_i) + N(0, sigma_G^2))               Alg. 1, lines 15 to 17; :class:`.DPFedAvg`

Deviations:
    * Accounting: The paper's sigma = c S sqrt(T log(1 / delta)) / epsilon leaves c open. The released code takes c = 1
      and S = C_th / B for clipped means of B images. One image can change such a mean by more, so fedvlp does not use
      this epsilon. After one SGD step, a client sends p_G - eta clip(g). The config's ``DPFedAvg``, with limit eta C_th
      and noise z eta C_th on the sum, is line 16 with sigma_G = z C_th / N. Its accountant covers only the shared
      prompt, for all data of a client instead of one image. After more local steps, or with another optimizer, the
      server clips their result.
    * Local noise: No accountant covers p_L's noise, because p_L never leaves its client; fedvlp draws it from the run's
      seed. It shows the cost of noise, but does not protect against anyone who knows the seed.
    * Text: Line 7 of the paper encodes each prompt; fedvlp encodes p_G + p_L, as Sec. 3.2 and the released code do.
    * Eq. 4: The released code adds the last term, and all its clients step by the last client's local gradient; fedvlp
      follows the paper. So, without noise and clipping, g_L is a projection of g, and equals g if k = L.
    * Values: The released code uses rate 0.001 with momentum for p_G and a tenth of it for p_L; fedvlp uses the paper's
      rates. Its noise multiplier 2.65 is the released formula's for the paper's largest epsilon, 0.4.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, cosine_logits
from fedvlp.core.protocols import Inputs
from fedvlp.core.strategies import FedAvg
from fedvlp.methods.prompts import PersonalPromptLearner
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveFloat, PositiveInt


class DPFPL(PersonalPromptLearner):
    """A shared prompt plus a personal prompt per client, which learns from noisy low-rank gradients.

    Args:
        rank: Rank k of the factors, at most the prompt's length.
        clip_norm: Maximum norm C_th of the gradients of p_G, u and v, above 0.
        local_noise_multiplier: Standard deviation of the noise on the gradients of u and v as a multiple of clip_norm,
            at least 0.
        options: Prompt length and evaluation of held-out domains, as in :class:`.PersonalPromptLearner`.
    """

    strategy = FedAvg("uniform")  # each client counts once

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        rank: PositiveInt = 8,
        clip_norm: PositiveFloat = 10.0,
        local_noise_multiplier: NonNegativeFloat = 2.65,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=1e-4),
        **options: Any,
    ) -> None:
        super().__init__(class_names, clip, optimizer=optimizer, **options)
        length = len(self.global_prompt)
        if rank > length:
            raise UserError(f"Expected a rank of at most {length}, the prompt_length; got {rank}.")
        self.rank = rank
        self.clip_norm = clip_norm
        self.local_noise_multiplier = local_noise_multiplier

    def client_prompt(self) -> Float[Tensor, "L D"]:
        """Compute p = p_G + p_L (Eq. 1)."""
        return self.global_prompt + self.local_prompt

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the cross-entropy of a batch (Eq. 2), whose gradients are clip(g) for p_G and g_L for p_L."""
        shared = self.global_prompt.detach()
        own = self.local_prompt.detach()
        # Both prompts have the same gradient as their sum.
        prompt = (shared + own).requires_grad_()
        logits = cosine_logits(self.precomputed(inputs)["features"], self.text(prompt), self.clip.logit_scale)
        cross_entropy = F.cross_entropy(logits, labels)
        (gradient,) = torch.autograd.grad(cross_entropy, prompt)
        noise = self.local_noise_multiplier * self.clip_norm
        own_gradient = local_gradient(gradient.float(), own.float(), self.rank, self.clip_norm, noise)
        # Both terms are zero; their gradients are the factors on the right.
        shared_term = ((self.global_prompt - shared) * clipped(gradient, self.clip_norm)).sum()
        own_term = ((self.local_prompt - own) * own_gradient).sum()
        return {"loss": cross_entropy.detach() + shared_term + own_term}


def clipped(gradient: Float[Tensor, "rows columns"], max_norm: float) -> Float[Tensor, "rows columns"]:
    """Scale a gradient down to at most the given norm."""
    share: Tensor = max_norm / gradient.norm()
    return gradient * share.clamp_max(1)


def factorized(local: Float[Tensor, "L D"], rank: int) -> tuple[Float[Tensor, "L k"], Float[Tensor, "k D"]]:
    """Compute u and v by one power iteration; u's columns and v's rows are orthonormal, as in the released code."""
    start = torch.randn(local.shape[1], rank, dtype=local.dtype, device=local.device)
    left = torch.linalg.qr(local @ start).Q
    return left, torch.linalg.qr(local.mT @ left).Q.mT


def factor_gradients(
    gradient: Float[Tensor, "L D"], left: Float[Tensor, "L k"], right: Float[Tensor, "k D"], max_norm: float, std: float
) -> list[Tensor]:
    """Compute g_u [L, k] and g_v [k, D]: gradients clipped to the norm, plus noise with standard deviation `std`."""
    # The residual r does not depend on the factors, so by the chain rule these are the gradients by u and v.
    exact = (gradient @ right.mT, left.mT @ gradient)
    return [clipped(each, max_norm) + std * torch.randn_like(each) for each in exact]


def local_gradient(
    gradient: Float[Tensor, "L D"], local: Float[Tensor, "L D"], rank: int, max_norm: float, std: float
) -> Float[Tensor, "L D"]:
    """Compute g_L from g and p_L, both without a graph (Eq. 4)."""
    # Autocast would round the factors, which would then not be orthonormal.
    with torch.autocast(gradient.device.type, enabled=False):
        left, right = factorized(local, rank)
        left_gradient, right_gradient = factor_gradients(gradient, left, right, max_norm, std)
        return left_gradient @ right + left @ right_gradient - left @ left.mT @ left_gradient @ right
