"""The gradient that a client's images make: of the prompts, as clients here send, or of the image tower as well.

What a client sends after one step of plain SGD is this gradient, scaled by the learning rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedvlp.core.module import FederatedModule

TOWER = "image_tower"
"""Stands before the names of the image tower's weights."""

Gradient = dict[str, Tensor]
"""One tensor for each parameter, by its name."""


def sent_parameters(module: FederatedModule) -> dict[str, Tensor]:
    """Returns the parameters that the running phase trains and sends; the method must have a client started."""
    # Buffers, as the running means of norms, are sent and have no gradient.
    upload = module.upload_state()
    sent: dict[str, Tensor] = {}
    for name, tensor in module.communicable_state().items():
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
            # PLAN sends its own prompts under another name, which only their values tell.
            twins = [value for value in upload.values() if value.shape == tensor.shape]
            if name in upload or any(torch.equal(value.to(tensor), tensor) for value in twins):
                sent[name] = tensor
    return sent


@contextmanager
def trainable_tower(module: FederatedModule) -> Iterator[dict[str, Tensor]]:
    """Yields the weights of CLIP's image tower, which get gradients in the block, as if the full model were trained."""
    clip: Any = module.clip
    weights = dict(clip.model.visual.named_parameters(prefix=TOWER))
    for weight in weights.values():
        weight.requires_grad_(True)
    try:
        yield weights
    finally:
        for weight in weights.values():
            weight.requires_grad_(False)


def loss_gradient(
    module: FederatedModule,
    images: Float[Tensor, "B *pixels"],
    labels: Int[Tensor, "B"],
    parameters: Mapping[str, Tensor],
    is_differentiable: bool = False,
) -> Gradient:
    """Returns the gradient of the method's loss on a batch; zero for a parameter on which the loss does not depend.

    The method must have a client started. A gradient that ``is_differentiable`` can itself be differentiated by the
    images, which are as CLIP's transform puts them out.
    """
    # Fused attention has no second derivative.
    with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        # Not `precomputed`, which cuts the graph off between images and what is prepared of them.
        loss: Any = module.training_step((module.precompute(images), labels), 0)
        weights = tuple(parameters.values())
        slopes = torch.autograd.grad(loss, weights, create_graph=is_differentiable, allow_unused=True)
    # The step logged losses as if a client had trained.
    module.clear_logs()
    gradient: Gradient = {}
    for (name, parameter), slope in zip(parameters.items(), slopes, strict=True):
        gradient[name] = torch.zeros_like(parameter) if slope is None else slope
    return gradient


PATCH_LAYER = f"{TOWER}.conv1.weight"
POSITIONS = f"{TOWER}.positional_embedding"


def image_of_gradient(gradient: Mapping[str, Tensor]) -> Float[Tensor, "1 3 V V"] | None:
    """Returns the one image of which a ViT's full gradient is, but for rounding, by linear equations.

    Paper: Lu et al., "APRIL: Finding the Achilles' heel on privacy for vision transformers", CVPR 2022, arXiv
    2112.14087, which shows that the gradient of position embeddings gives an image away. There the equations are those
    of the first attention; here they are those of the patch layer, which also hold where a norm is between the two.

    Symbols: x_p pixels of patch p; W the patch layer; e_p = W x_p + position_p; delta_p = dL/de_p.
        dL/dposition_p = delta_p
        dL/dW = sum_p delta_p x_p^T, linear in x

    Returns:
        The image; None if the tower is no ViT of open_clip, or has more patches than its tokens have elements.
    """
    if PATCH_LAYER not in gradient or POSITIONS not in gradient:
        return None
    # Least squares in single precision would lose the image's small values.
    slopes = gradient[POSITIONS][1:].double()  # without the class token, [patches, W]
    of_layer = gradient[PATCH_LAYER].double()  # [W, 3, size, size]
    if slopes.ndim != 2 or len(slopes) > slopes.shape[1]:
        return None
    pixels = torch.linalg.lstsq(slopes.mT, of_layer.flatten(1)).solution  # [patches, 3 size size]
    # Patches are in rows of the image, from the top.
    side = round(len(pixels) ** 0.5)
    size = of_layer.shape[-1]
    squares = pixels.reshape(side, side, 3, size, size).permute(2, 0, 3, 1, 4)
    image: Tensor = squares.reshape(1, 3, side * size, side * size)
    return image.to(gradient[PATCH_LAYER])
