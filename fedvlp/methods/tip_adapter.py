"""TipAdapter: zero-shot CLIP plus a cache with each client's class means, in one round and without gradients.

Paper: Zhang et al., "Tip-Adapter: Training-free Adaption of CLIP for Few-shot Classification", ECCV 2022.

Symbols: x image feature and t_c text feature, unit vectors; s logit scale; key k_jc is the unit mean of client j's
features of class c; alpha -> ``cache_weight``; beta -> ``sharpness``.
    A(x, k) = exp(-beta (1 - <x, k>))
    p(c | x) = softmax_c(s <t_c, x> + alpha sum_j A(x, k_jc))      :meth:`TipAdapter.forward`
The sum is over the clients with images of class c. Without keys it is zero-shot CLIP.

Deviations:
    * Keys: The paper stores up to 16 images per class; fedvlp stores one mean per class and client, because features of
      single images should not leave a client.
    * Weights: The released code chooses alpha and beta on each data set's validation images; fedvlp has fixed defaults,
      which are close to the best source validation on IconDomains.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.protocols import Inputs
from fedvlp.core.state import State
from fedvlp.methods.closed_form import ClosedFormOfClients
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveFloat, PositiveInt


class TipAdapter(ClosedFormOfClients):
    """Zero-shot CLIP plus the similarity to each client's class means.

    Args:
        num_clients: Number of clients K.
        cache_weight: Weight alpha of the cache, at least 0; with 0, it is zero-shot CLIP.
        sharpness: Factor beta by which the similarity to a key decays, above 0.
    """

    deployed = ("keys",)
    keys: Tensor

    def __init__(
        self,
        class_names: Names,
        num_clients: PositiveInt,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        cache_weight: NonNegativeFloat = 200.0,
        sharpness: PositiveFloat = 5.5,
    ) -> None:
        super().__init__(class_names, clip)
        self.cache_weight = cache_weight
        self.sharpness = sharpness
        self.register_buffer("keys", torch.zeros(num_clients, *self.weight.shape))  # [K, C, d]

    def classifier_from_clients(self, counts: Float[Tensor, "K C"], sums: Float[Tensor, "K C d"]) -> State:
        """Compute the keys, which are zero for a class that a client lacks and for a client that sent nothing."""
        keys = torch.zeros(self.keys.shape, dtype=sums.dtype)
        keys[: len(sums)] = F.normalize(sums, dim=-1) * (counts > 0)[..., None]
        return {"keys": keys}

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits s <t_c, x> + alpha sum_j A(x, k_jc)."""
        features = F.normalize(self.precomputed(inputs)["features"].float(), dim=-1)
        with torch.autocast(features.device.type, enabled=False):
            affinity = torch.exp(self.sharpness * (torch.einsum("bd,kcd->bkc", features, self.keys) - 1))
            cache = (affinity * self.keys.any(-1)).sum(1)
            return self.clip.logit_scale * features @ self.text_features.T + self.cache_weight * cache
