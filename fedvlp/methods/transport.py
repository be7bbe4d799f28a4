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
def patch_features(clip: CLIP, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B M d"]:
    """Compute G, the joint features of all patches, without class token and registers, of length 1."""
    tokens = clip.encode_image_tokens(images)[1]
    return F.normalize(clip.image.project(tokens[:, clip.image.num_prefix :]).float(), dim=-1)


def transport_logits(
    patches: Float[Tensor, "B M d"],
    texts: Float[Tensor, "N C d"],
    scale: float,
    *,
    mass: float | None,
    epsilon: float,
    iterations: int,
) -> Float[Tensor, "B C"]:
    """Compute the logits <cos, T> / tau, which are (1 - <C, T>) / tau less a constant; T has no gradient.

    `scale` is 1 / tau; the other options are those of :func:`transport_plan`.
    """
    with torch.autocast(patches.device.type, enabled=False):
        cosines = torch.einsum("bmd,ncd->bcnm", patches, F.normalize(texts.float(), dim=-1))
        # The plan counts as a constant: only the cosines get a gradient.
        plan = transport_plan(1 - cosines.detach(), mass, epsilon, iterations)
        return scale * (plan * cosines).sum((-2, -1))


def transport_plan(
    cost: Float[Tensor, "*batch N M"], mass: float | None, epsilon: float, iterations: int
) -> Float[Tensor, "*batch N M"]:
    """Compute how much of each patch goes to each prompt: T of least <C, T> + epsilon <T, log T>.

    Of M patches each has a mass of 1 / M and gives at most that, and of N prompts each takes mass / N. T is then
    diag(v) exp(-C / epsilon) diag(u) with u <= 1, found by meeting both conditions in turn (Dykstra's algorithm).
    With None patches give all that they have: u has no bound, and the same steps are Sinkhorn's.
    """
    patches = cost.shape[-1]
    prompts = cost.shape[-2]
    log_kernel = -cost / epsilon
    bound = math.inf if mass is None else 0.0
    taken = 1.0 if mass is None else mass

    # u has a value for each patch, v one for each prompt.
    log_u = cost.new_zeros(cost[..., 0, :].shape)
    log_v = cost.new_zeros(cost[..., 0].shape)
    for _ in range(iterations):  # in logarithms, since exp(-C / epsilon) may be zero for all patches
        log_u = (-math.log(patches) - (log_kernel + log_v[..., :, None]).logsumexp(-2)).clamp(max=bound)
        log_v = math.log(taken / prompts) - (log_kernel + log_u[..., None, :]).logsumexp(-1)
    return (log_v[..., :, None] + log_kernel + log_u[..., None, :]).exp()
