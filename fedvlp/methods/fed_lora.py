"""FedLoRA: low-rank updates of the attention of both of CLIP's towers, averaged over clients.

Papers: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022; in CLIP as CLIP-LoRA, Zanella and
Ben Ayed, "Low-Rank Few-Shot Adaptation of Vision-Language Models", CVPR Workshops 2024; under FedAvg. ``share: B`` is
from Mitra et al., "FedVLM: Scalable Personalized Vision-Language Models through Federated Learning", ECAI 2025, and a
list of ranks from Liu et al., "HLoRA: Efficient Federated Learning System for LLM Heterogeneous Fine-Tuning", 2025.

Symbols: A, r x W, and B, W x r, of query, key and value maps -> ``down``, ``up``; r -> ``rank``; alpha -> ``alpha``;
t_c, "a photo of a [class c].".
    W <- W + (alpha / r) B A, starting from B = 0          LoRA, Section 4.1; :class:`.LowRankUpdates`
    p(c | x) = softmax_c(cos(w(t_c), f(x)) / tau)          CLIP-LoRA, Section 3; :meth:`FedLoRA.forward`
    A, B <- sum_k |S_k| (A_k, B_k) / sum_k |S_k|           :class:`.FedAvg`; with ``share: B``, A_k stays
    B A <- sum_k |S_k| B_k A_k / sum_k |S_k|, cut to the   HLoRA, with a list of ranks; :class:`ProductMean`
        largest rank; client k gets its r_k largest parts  :meth:`FedLoRA.start_client`

Deviations:
    * Average: LoRA's papers do not average; fedvlp averages A and B separately, because the mean of the clients' B A
      would not have rank r.
    * Ranks: HLoRA's server keeps the whole mean; fedvlp's keeps the largest rank. Factors are padded with zeros, so all
      clients send as much as the client of the largest rank. All ranks have the same scale, alpha / (largest rank).
    * Held-out domains: With ``share: B``, the probabilities of all clients are averaged, because without A the method
      is zero-shot CLIP.
    * Dropout: CLIP-LoRA uses 0.25 before A; fedvlp uses none, because it adds the low-rank updates to the weights.
    * Scale: CLIP-LoRA's code uses alpha / sqrt(r); fedvlp uses alpha / r, as LoRA does. At rank 2, ``alpha: 1.4142``
      gives CLIP-LoRA's scale for alpha = 1.
    * Schedule: CLIP-LoRA uses a cosine over all steps; fedvlp keeps the rate constant, so that a run can be extended.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.func import functional_call

from fedvlp.clip import CLIP, CLIPSpec, cosine_logits
from fedvlp.clip.image_towers import ImageTower
from fedvlp.clip.packing import make_rows
from fedvlp.clip.prompted_text import PromptFeatureCache
from fedvlp.clip.text_towers import TextTower
from fedvlp.clip.zero_shot import tokenize_classes
from fedvlp.core.phases import RoundContext
from fedvlp.core.protocols import Inputs
from fedvlp.core.state import ClientUpdate, ServerState, State
from fedvlp.core.strategies import FedAvg, Strategy
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, NonNegativeInt, PositiveFloat, PositiveInt

TOWERS = ("text_updates", "image_updates")


class FedLoRA(PromptLearner):
    """Low-rank updates of CLIP's attention, shared by all clients.

    Args:
        rank: Rank r of each low-rank update; 0 gives zero-shot CLIP. A list has a rank for each client, and is
            repeated for further clients; the server then averages the products B A.
        alpha: Scale of the low-rank updates, which are multiplied by alpha / rank.
        share: Factors that clients send: ``both``, or only ``B``, so that each client keeps its own A.
    """

    needs_images = True  # the updates change the image tower
    supports_several_labels = True

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        rank: NonNegativeInt | list[PositiveInt] = 2,
        alpha: PositiveFloat = 1.0,
        share: Literal["both", "B"] = "both",
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=2e-4, weight_decay=0.01),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.ranks = rank if isinstance(rank, list) else [rank]
        most = max(self.ranks)
        if isinstance(rank, list):
            self.strategy = ProductMean()
        if share == "B":
            self.personal = tuple(f"{tower}.down" for tower in TOWERS)
            self.held_out_evaluation = "mean"
        if self.personal and isinstance(rank, list):
            raise UserError("FedLoRA expects share: both if rank is a list, to average products B A; got share: B.")
        self.adapted = AdaptedCLIP(self.clip)
        self.rows = make_rows(self.clip.text, tokenize_classes(self.clip, class_names))
        self._cache = PromptFeatureCache()
        scale = alpha / max(most, 1)
        self.text_updates = LowRankUpdates(self.clip.text.depth, self.clip.text_width, most, scale)
        self.image_updates = LowRankUpdates(len(self.clip.image.blocks or ()), self.clip.image_width, most, scale)

    @torch.no_grad()
    def start_client(self, context: RoundContext) -> None:
        """Prepare for one client's local training; its updates keep their first parts, as many as its rank."""
        super().start_client(context)
        rank = self.ranks[context.client.id % len(self.ranks)]
        for updates in (self.text_updates, self.image_updates):
            # If both factors of a part are zero, so are their gradients.
            updates.down[..., rank:, :] = 0
            updates.up[..., rank:] = 0

    def image_features(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B d"]:
        """Compute the joint image features f(x), not normalised."""
        return self._run(self.image_updates, "image", self.clip.encode_image, images)

    def _run(self, updates: "LowRankUpdates", kind: str, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        # B is useless without a client's A.
        if self.personal and not self.uses_personal:
            return function(*arguments)
        return self.adapted.run(updates, kind, function, *arguments)

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits cos(w(t_c), f(x)) / tau with the updated towers."""
        features = self.image_features(self.precomputed(inputs)["images"])
        encode = partial(self._run, self.text_updates, "text", self.rows.encode_words, self.clip.text)
        # Without a gradient, texts are encoded only if their updates have changed.
        texts = self._cache(self.uses_personal, lambda *_: encode(), *self.text_updates.parameters())
        return cosine_logits(features, texts, self.clip.logit_scale)


@dataclass(frozen=True)
class ProductMean(Strategy):
    """Mean of the clients' products B A, weighted by training images and cut to the rank of the factors by its SVD.

    The SVD U S V^T gives B = U S and A = V^T, with the largest singular values first.
    """

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Replace the factors of both towers."""
        weights = torch.tensor([FedAvg().weight(update) for update in updates])
        shares = weights / weights.sum()
        factors: State = {}
        for tower in TOWERS:
            ups = [share * update.state[f"{tower}.up"] for share, update in zip(shares, updates, strict=True)]
            downs = [update.state[f"{tower}.down"] for update in updates]
            # Side by side, the factors multiply to the mean. With their QR decompositions, only a small SVD is needed.
            left, left_square = torch.linalg.qr(torch.cat(ups, -1))
            right, right_square = torch.linalg.qr(torch.cat(downs, -2).mT)
            u, singular, vt = torch.linalg.svd(left_square @ right_square.mT)
            rank = downs[0].shape[-2]
            factors[f"{tower}.up"] = (left @ u * singular[..., None, :])[..., :rank]
            factors[f"{tower}.down"] = (vt @ right.mT)[..., :rank, :]
        return server.updated(factors)


class LowRankUpdates(nn.Module):
    """Low-rank updates s B A of the query, key and value maps in each of J blocks of a tower; they start at zero."""

    def __init__(self, blocks: int, width: int, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        bound = width**-0.5  # as in nn.Linear
        learns = rank > 0
        self.down = nn.Parameter(torch.empty(blocks, 3, rank, width).uniform_(-bound, bound), requires_grad=learns)  # A
        # With B = 0, the method starts as unchanged CLIP.
        self.up = nn.Parameter(torch.zeros(blocks, 3, width, rank), requires_grad=learns)  # B

    def forward(self) -> Float[Tensor, "J rows W"]:
        """Compute each block's updates of its three maps, stacked to 3 W rows."""
        return self.scale * (self.up @ self.down).flatten(1, 2)


class AdaptedCLIP(nn.Module):
    """Runner of CLIP's towers with updated maps; it has no parameters of its own.

    The maps' weights are replaced only during a call (``torch.func.functional_call``).
    """

    def __init__(self, clip: CLIP) -> None:
        super().__init__()
        self.clip = clip
        # functional_call needs the weights' names in this module, but towers give only tensors.
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        self.names: dict[str, list[str]] = {}
        towers: dict[str, tuple[TextTower | ImageTower, str]]
        towers = {"text": (clip.text, "text tower"), "image": (clip.image, clip.image.kind)}
        for kind, (tower, title) in towers.items():
            blocks: Any = getattr(tower, "layers", tower.blocks)
            weights = [_attention_weights(block) for block in blocks or ()]
            shape = (3 * tower.width, tower.width)
            if not weights or any(torch.cat(each).shape != shape for each in weights):
                raise UserError(
                    f"LoRA expects transformer blocks with query, key and value maps of {tower.width} x {tower.width}, "
                    f"but this model's {title} has different layers. Choose another --model.clip.name, for example "
                    "ViT-B-16."
                )
            self.names[kind] = [names[id(weight)] for each in weights for weight in each]

    def forward(self, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Call a function, which may read CLIP's weights."""
        return function(*arguments)

    def run(self, updates: LowRankUpdates, kind: str, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Call a function with the updated weights of one tower, ``text`` or ``image``."""
        weights = {}
        names = self.names[kind]  # of all blocks, each with one weight for its three maps, or three weights
        for name, change in zip(names, updates().flatten(0, 1).chunk(len(names)), strict=True):
            frozen = self.get_parameter(name)
            # Add the update in float32, even to bfloat16 weights.
            weights[name] = (frozen + change).to(frozen.dtype)
        return functional_call(self, weights, (function, *arguments), tie_weights=False)


_SEPARATE_MAPS = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q", "k", "v"))


def _attention_weights(block: nn.Module) -> list[Tensor]:
    for module in block.modules():
        layer: Any = module
        if getattr(layer, "in_proj_weight", None) is not None:
            return [layer.in_proj_weight]
        if getattr(layer, "qkv", None) is not None:
            return [layer.qkv.weight]
        for names in _SEPARATE_MAPS:
            if all(hasattr(layer, name) for name in names):
                return [getattr(layer, name).weight for name in names]
    return []
