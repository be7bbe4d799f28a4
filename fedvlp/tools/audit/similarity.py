"""How like two images are: squared error, PSNR, SSIM, and what CLIP sees in them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

MEASURES = ("mse", "psnr", "ssim", "feature_cosine")
MOST_PSNR = 100.0
"""In dB; a larger one, such as that of equal images, is infinite or rounding."""


@torch.no_grad()
def similarities(
    clip: Any, images: Float[Tensor, "B 3 V V"], others: Float[Tensor, "B 3 V V"]
) -> list[dict[str, float]]:
    """Returns, for each pair of images, how like they are.

    ``mse``, ``psnr`` (in dB, at most 100) and ``ssim`` (Wang et al., 2004; with a Gaussian window of 11 pixels, so that
    sides must have at least as many) are of pixels in [0, 1]; ``feature_cosine`` is of CLIP's joint image features.

    Args:
        clip: the frozen CLIP.
        images: as its transform puts them out.
        others: the same.
    """
    one = pictures(clip, images)
    other = pictures(clip, others)
    errors = (one - other).square().flatten(1).mean(dim=1)
    ratios = peak_signal_noise_ratio(one, other, data_range=1.0, reduction="none", dim=(1, 2, 3))
    structure: Any = structural_similarity_index_measure(one, other, data_range=1.0, reduction="none")
    features = [clip.encode_image(normalised(clip, shown)).float() for shown in (one, other)]
    columns = [errors, ratios.clamp(max=MOST_PSNR), structure, F.cosine_similarity(*features)]
    # Of a single image torchmetrics gives a number, not a column of one.
    rows = torch.stack([column.reshape(-1).cpu().double() for column in columns], dim=1).tolist()
    return [dict(zip(MEASURES, row, strict=True)) for row in rows]


def pictures(clip: Any, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B 3 V V"]:
    """Returns images as pixels in [0, 1], from what CLIP's transform puts out."""
    mean, deviation = _scale(clip, images)
    return (images * deviation + mean).clamp(0, 1)


def normalised(clip: Any, shown: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B 3 V V"]:
    """Returns pixels in [0, 1] as CLIP's transform puts them out."""
    mean, deviation = _scale(clip, shown)
    return (shown - mean) / deviation


def pixel_bounds(clip: Any, images: Tensor) -> tuple[Float[Tensor, "3 1 1"], Float[Tensor, "3 1 1"]]:
    """Returns black and white as CLIP's transform puts them out, of the type and on the device of some images."""
    mean, deviation = _scale(clip, images)
    return -mean / deviation, (1 - mean) / deviation


def _scale(clip: Any, like: Tensor) -> tuple[Float[Tensor, "3 1 1"], Float[Tensor, "3 1 1"]]:
    options = clip.preprocess_options
    mean = torch.tensor(options.mean).to(like)[:, None, None]
    deviation = torch.tensor(options.std).to(like)[:, None, None]
    return mean, deviation
