"""Optimal transport between the patches of an image and the texts of several prompts, as in PLOT and FedOTP.

Symbols: G_m, joint feature of patch m of M -> ``patches``; H_nc, text feature of class c under prompt n of N ->
``texts``; cost C_nm = 1 - cos(G_m, H_nc); lambda, weight of the plan's entropy -> ``epsilon``.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedvlp.clip import CLIP


@torch.no_grad()
def patch_features(clip: CLIP, images: Float[Tensor, "B 3 V V"]) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B M d"]]:
    """Compute f(x), and G, the unit joint features of all patches, without class token and registers."""
    features, tokens = clip.encode_image_tokens(images)
    return features, F.normalize(clip.image.project(tokens[:, clip.image.num_prefix :]).float(), dim=-1)


def transport_logits(
    patches: Float[Tensor, "B M d"],
    texts: Float[Tensor, "N C d"],
    scale: float,
    *,
    mass: float | None,
    epsilon: float,
    iterations: int,
) -> Float[Tensor, "B C"]:
    """Compute the logits <cos, T> / tau, which equal (1 - <C, T>) / tau up to a constant; T has no gradient.

    `scale` is 1 / tau; see :func:`transport_plan` for the other options.
    """
    with torch.autocast(patches.device.type, enabled=False):
        cosines = torch.einsum("bmd,ncd->bcnm", patches, F.normalize(texts.float(), dim=-1))
        # The plan is a constant: only the cosines get a gradient.
        plan = transport_plan(1 - cosines.detach(), mass, epsilon, iterations)
        return scale * (plan * cosines).sum((-2, -1))


def transport_plan(
    cost: Float[Tensor, "*batch N M"], mass: float | None, epsilon: float, iterations: int
) -> Float[Tensor, "*batch N M"]:
    """Compute the share of each patch for each prompt: the plan T with the smallest <C, T> + epsilon <T, log T>.

    Each of M patches gives at most 1 / M, and each of N prompts takes mass / N. T is then
    diag(v) exp(-C / epsilon) diag(u) with u <= 1, found by meeting both conditions in turn (Dykstra's algorithm). With
    ``mass=None``, patches give their whole mass: u is not bounded, and the same steps are Sinkhorn's algorithm.
    """
    patches = cost.shape[-1]
    prompts = cost.shape[-2]
    log_kernel = -cost / epsilon
    bound = math.inf if mass is None else 0.0
    taken = 1.0 if mass is None else mass

    # u has one value per patch, v one per prompt.
    log_u = cost.new_zeros(cost[..., 0, :].shape)
    log_v = cost.new_zeros(cost[..., 0].shape)
    for _ in range(iterations):  # in logarithms, because exp(-C / epsilon) may underflow for all patches
        log_u = (-math.log(patches) - (log_kernel + log_v[..., :, None]).logsumexp(-2)).clamp(max=bound)
        log_v = math.log(taken / prompts) - (log_kernel + log_u[..., None, :]).logsumexp(-1)
    return (log_v[..., :, None] + log_kernel + log_u[..., None, :]).exp()
