"""The image that a ViT's full gradient holds, by linear equations: nothing is searched for.

Paper: Lu et al., "APRIL: Finding the Achilles' heel on privacy for vision transformers", CVPR 2022, arXiv 2112.14087,
which shows that the gradient of position embeddings gives an image away. There the equations are those of the first
attention; here they are those of the patch layer, which also hold where a norm stands between the two.

Symbols: x_p pixels of patch p; W the patch layer; e_p = W x_p + position_p; delta_p = dL/de_p.
    dL/dposition_p = delta_p
    dL/dW = sum_p delta_p x_p^T, linear in x
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from fedvlp.tools.audit.gradients import TOWER

PATCH_LAYER = f"{TOWER}.conv1.weight"
POSITIONS = f"{TOWER}.positional_embedding"


def image_of_gradient(gradient: Mapping[str, Tensor]) -> Float[Tensor, "1 3 V V"] | None:
    """Returns the one image of which a gradient is, but for rounding.

    Args:
        gradient: of the image tower's weights.

    Returns:
        The image; None if the tower is no ViT of open_clip, or has more patches than its tokens have numbers.
    """
    if PATCH_LAYER not in gradient or POSITIONS not in gradient:
        return None
    slopes = gradient[POSITIONS][1:].double()  # without the class token, [patches, W]
    of_layer = gradient[PATCH_LAYER].double()  # [W, 3, size, size]
    if slopes.ndim != 2 or len(slopes) > slopes.shape[1]:
        return None
    pixels = torch.linalg.lstsq(slopes.mT, of_layer.flatten(1)).solution  # [patches, 3 size size]
    return _picture(pixels, of_layer.shape[-1]).to(gradient[PATCH_LAYER])


def _picture(patches: Float[Tensor, "patches numbers"], size: int) -> Float[Tensor, "1 3 V V"]:
    """Returns patches, row by row, as the image that they make."""
    side = round(len(patches) ** 0.5)
    squares = patches.reshape(side, side, 3, size, size)
    return squares.permute(2, 0, 3, 1, 4).reshape(1, 3, side * size, side * size)
