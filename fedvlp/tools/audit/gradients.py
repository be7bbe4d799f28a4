"""Gradients of a client's images for prompts and the image tower: the client's update after one step of plain SGD."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedvlp.core.module import FederatedModule

TOWER = "image_tower"  # prefix of the names of the image tower's weights
Gradient = dict[str, Tensor]
"""One tensor per parameter, by name."""


def uploaded_parameters(module: FederatedModule) -> dict[str, Tensor]:
    """Select the parameters that the running phase trains and sends; the method must have a client started."""
    upload = module.upload_state()
    uploaded: dict[str, Tensor] = {}
    for name, tensor in module.communicable_state().items():
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
            # PLAN sends its prompts under another name.
            twins = [value for value in upload.values() if value.shape == tensor.shape]
            if name in upload or any(torch.equal(value.to(tensor), tensor) for value in twins):
                uploaded[name] = tensor
    return uploaded


@contextmanager
def trainable_tower(module: FederatedModule) -> Iterator[dict[str, Tensor]]:
    """Yield the weights of CLIP's image tower, and enable their gradients within the block."""
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
    """Compute the gradient of the method's loss on a batch; zero for parameters that do not affect the loss.

    The method must have a client started. If ``is_differentiable``, the gradient can be differentiated with respect to
    the normalised images.
    """
    # Fused attention has no second derivative.
    with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        # Do not use `precomputed`, because its results have no gradient.
        loss: Any = module.training_step((module.precompute(images), labels), 0)
        weights = tuple(parameters.values())
        slopes = torch.autograd.grad(loss, weights, create_graph=is_differentiable, allow_unused=True)
    module.clear_logs()  # discard the losses that the step logged
    gradient: Gradient = {}
    for (name, parameter), slope in zip(parameters.items(), slopes, strict=True):
        gradient[name] = torch.zeros_like(parameter) if slope is None else slope
    return gradient


PATCH_LAYER = f"{TOWER}.conv1.weight"
POSITIONS = f"{TOWER}.positional_embedding"


def recover_image(gradient: Mapping[str, Tensor]) -> Float[Tensor, "1 3 V V"] | None:
    """Recover the image of a ViT's full gradient by solving linear equations.

    Paper: Lu et al., "APRIL: Finding the Achilles' heel on privacy for vision transformers", CVPR 2022, arXiv
    2112.14087. It recovers an image from the gradient of position embeddings by the equations of the first attention.
    This function uses the equations of the patch layer, which also hold if a norm follows it.

    Symbols: x_p pixels of patch p; W the patch layer; e_p = W x_p + position_p; delta_p = dL/de_p.
        dL/dposition_p = delta_p
        dL/dW = sum_p delta_p x_p^T, linear in x

    Returns None if the tower is not a ViT of open_clip, or has more patches than its tokens have elements.
    """
    if PATCH_LAYER not in gradient or POSITIONS not in gradient:
        return None
    slopes = gradient[POSITIONS][1:].double()  # without the class token, [patches, W]
    layer_slopes = gradient[PATCH_LAYER].double()  # [W, 3, size, size]
    if slopes.ndim != 2 or len(slopes) > slopes.shape[1]:
        return None
    pixels = torch.linalg.lstsq(slopes.mT, layer_slopes.flatten(1)).solution  # [patches, 3 size size]
    side = round(len(pixels) ** 0.5)
    size = layer_slopes.shape[-1]
    squares = pixels.reshape(side, side, 3, size, size).permute(2, 0, 3, 1, 4)
    image: Tensor = squares.reshape(1, 3, side * size, side * size)
    return image.to(gradient[PATCH_LAYER])
