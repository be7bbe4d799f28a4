"""DP-FPL: a shared prompt plus one of each client's own, whose gradient is noised in two thin factors.

Paper: Tran et al., "Privacy-Preserving Personalized Federated Prompt Learning for Multimodal Large Language Models",
ICLR 2025.

Symbols: p_G, p_L, L x D -> ``global_prompt``, ``local_prompt``; k -> ``rank``; C_th -> ``clip_norm``; u, L x k, and v,
k x D, made anew in each step -> ``left``, ``right``; g gradient of a batch's loss by p -> ``gradient``; sigma_L ->
``local_noise_multiplier`` times C_th; clip shortens to the norm C_th.
    p = p_G + p_L, p_L = u v + r                                        Sec. 3.2; :meth:`DPFPL.client_prompt`
    u = orth(p_L v_0), v = orth(p_L^T u)^T, v_0 ~ N(0, 1)               Sec. 3.4; :func:`factorized`
    g_u = clip(g v^T) + N(0, sigma_L^2), g_v = clip(u^T g) + N(0, sigma_L^2)
                                                                        Alg. 1, lines 9, 10; :func:`factor_gradients`
    g_L = g_u v + u g_v - u u^T g_u v                                   Eq. 4; :func:`local_gradient`
    p_L <- p_L - eta g_L                                                Alg. 1, line 12; :meth:`DPFPL.losses`
    p_G <- p_G - eta (mean_i clip(g_i) + N(0, sigma_G^2))               Alg. 1, lines 15 to 17; :class:`.DPFedAvg`

Departures:
    * Accounting: the paper's sigma = c S sqrt(T log(1 / delta)) / epsilon leaves c open. The released code takes c = 1
      and S = C_th / B for clipped means of B images, which one image can move by more, so fedvlp uses no epsilon of it.
      After one step of SGD a client sends p_G - eta clip(g); the config's ``DPFedAvg``, with limit eta C_th and noise z
      eta C_th on the sum, is line 16 with sigma_G = z C_th / N. Its accountant covers only the shared prompt, for all
      data of a client instead of one image. After more local steps, or with another optimizer, the server clips their
      result.
    * Local noise: p_L never leaves its client, so no account covers its noise. It is drawn from the run's seed: it
      shows what noise costs, and protects from no one who knows the seed.
    * Text: encoded under p_G + p_L, as in Sec. 3.2 and the released code; line 7 has features of each prompt.
    * Eq. 4: the released code adds the last term, and all its clients step by the last client's local gradient; fedvlp
      follows the paper, so that g_L is a projection of g, and equals g if k = L.
    * Values: 2.65 is the released formula's noise multiplier for the paper's largest epsilon, 0.4; rates are the
      paper's. The released code has 0.001 with momentum for p_G, and a tenth of it for p_L.
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
    """Learns a prompt that is shared and, by noised low-rank gradients, one for each client that is added to it.

    Args:
        rank: Rank k of the factors, at most the prompt's length.
        clip_norm: Largest norm C_th of the gradients of p_G, u and v, above 0.
        local_noise_multiplier: Standard deviation of the noise on the gradients of u and v as a multiple of clip_norm,
            at least 0.
        options: Prompt length and evaluation of held-out domains, as of :class:`.PersonalPromptLearner`.
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
        """Compute p (Eq. 1)."""
        return self.global_prompt + self.local_prompt

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the cross-entropy of a batch (Eq. 2), whose gradients are clip(g) for p_G and g_L for p_L."""
        shared = self.global_prompt.detach()
        own = self.local_prompt.detach()
        # Each prompt's gradient is that of their sum.
        prompt = (shared + own).requires_grad_()
        logits = cosine_logits(self.precomputed(inputs)["features"], self.text(prompt), self.clip.logit_scale)
        cross_entropy = F.cross_entropy(logits, labels)
        (gradient,) = torch.autograd.grad(cross_entropy, prompt)
        noise = self.local_noise_multiplier * self.clip_norm
        of_own = local_gradient(gradient.float(), own.float(), self.rank, self.clip_norm, noise)
        # Both differences are zero; their gradients are what stands beside them.
        moves_shared = ((self.global_prompt - shared) * clipped(gradient, self.clip_norm)).sum()
        moves_own = ((self.local_prompt - own) * of_own).sum()
        return {"loss": cross_entropy.detach() + moves_shared + moves_own}


def clipped(gradient: Float[Tensor, "rows columns"], max_norm: float) -> Float[Tensor, "rows columns"]:
    """Compute a gradient that is no longer than the norm, in its own direction."""
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
    """Return g_u [L, k] and g_v [k, D]: shortened to the norm each, with noise of the standard deviation."""
    # The residual r is no function of the factors, so by the chain rule these are the gradients by u and v.
    exact = (gradient @ right.mT, left.mT @ gradient)
    return [clipped(each, max_norm) + std * torch.randn_like(each) for each in exact]


def local_gradient(
    gradient: Float[Tensor, "L D"], local: Float[Tensor, "L D"], rank: int, max_norm: float, std: float
) -> Float[Tensor, "L D"]:
    """Compute g_L, from g and p_L (Eq. 4); neither has a graph."""
    # Under autocast the factors would be rounded, and no longer be orthonormal.
    with torch.autocast(gradient.device.type, enabled=False):
        left, right = factorized(local, rank)
        of_left, of_right = factor_gradients(gradient, left, right, max_norm, std)
        return of_left @ right + left @ of_right - left @ left.mT @ of_left @ right
