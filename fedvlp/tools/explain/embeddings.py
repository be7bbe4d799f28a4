"""Target images as points in the plane: what t-SNE is shown, and where it puts it (PLAN, Fig. 6).

t-SNE is that of van der Maaten and Hinton, "Visualizing data using t-SNE", JMLR 2008, as scikit-learn has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.tools.explain.methods import image_features
from fedvlp.utils.errors import UserError

Points = NDArray[np.float32]
"""Places [N, 2] in the plane."""

Shown = Literal["class logits", "image features"]


def check_tsne(count: int, perplexity: float | None) -> float:
    """Returns the perplexity to use: the one given, or 30, or a third of the points where there are few.

    Raises:
        UserError: If scikit-learn is missing, there are fewer than four points, or not more than the perplexity.
    """
    try:
        import sklearn.manifold  # noqa: F401
    except ImportError as error:
        missing = 't-SNE needs scikit-learn, which is not installed. Run: pip install "fedvlp[explain]"'
        raise UserError(missing) from error
    if count < 4:
        raise UserError(f"t-SNE needs at least 4 images, but there are {count}. Use a domain with more images.")
    if perplexity is not None and not 0 < perplexity < count:
        raise UserError(
            f"t-SNE needs a perplexity above 0 and below the number of images, {count}, but got {perplexity}. "
            "Pass a smaller --perplexity."
        )
    return min(30.0, (count - 1) / 3) if perplexity is None else perplexity


def tsne(features: Float[Tensor, "N d"], perplexity: float | None = None, seed: int = 0) -> Points:
    """Returns places [N, 2] in the plane at which near features are near; equal calls give equal places.

    Raises:
        UserError: As :func:`check_tsne`.
    """
    chosen = check_tsne(len(features), perplexity)
    # Optional, and slow to import.
    from sklearn.manifold import TSNE

    places = TSNE(perplexity=chosen, init="pca", random_state=seed).fit_transform(features.double().numpy())
    return np.asarray(places, dtype=np.float32)


@torch.no_grad()
def embeddings(
    trained: FederatedModule, baseline: FederatedModule, images: Float[Tensor, "B 3 V V"]
) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B d"], Shown]:
    """Returns what t-SNE is shown of images under the trained method and under its baseline, and what that is.

    These are unit image features where the trained method changes them, else logits.

    A method that leaves image features as they are differs from CLIP in its logits alone; of these the mean over
    classes is taken off, which no probability depends on.

    Args:
        trained: The trained method.
        baseline: What it is compared with.
        images: A batch on their device.
    """
    changed = image_features(trained, images)
    if changed is None:
        centred = [_centred(module(images)) for module in (trained, baseline)]
        return centred[0], centred[1], "class logits"
    clip: Any = baseline.clip
    unchanged = image_features(baseline, images)
    if unchanged is None:
        unchanged = clip.encode_image(images)
    return F.normalize(changed.float(), dim=-1), F.normalize(unchanged.float(), dim=-1), "image features"


def _centred(logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
    return logits.float() - logits.float().mean(dim=1, keepdim=True)


def neighbour_agreement(points: Points, labels: Sequence[int]) -> float:
    """Returns the share of points whose nearest other point has the same label.

    >>> neighbour_agreement(np.asarray([[0, 0], [0, 1], [9, 9]], dtype=np.float32), [1, 1, 2])
    0.6666666666666666
    """
    distances = torch.cdist(torch.from_numpy(points).double(), torch.from_numpy(points).double())
    nearest = distances.fill_diagonal_(torch.inf).argmin(dim=1)
    return float((torch.as_tensor(labels)[nearest] == torch.as_tensor(labels)).double().mean())
