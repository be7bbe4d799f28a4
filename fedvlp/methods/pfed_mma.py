"""pFedMMA: adapters parallel to the last blocks of both towers; only the maps common to both towers are averaged.

Paper: Ghiasvand, Alizadeh and Pedarsani, "pFedMMA: Personalized Federated Fine-Tuning with Multi-Modal Adapter for
Vision-Language Models", ICLR 2026. The adapter is MMA's (Yang et al., CVPR 2024).

Symbols: o in {T, I} a tower; W_jd^o, r x width, and W_ju^o, width x r, of block j -> ``down[o]``, ``up[o]``; W_js,
r x r, of both towers -> ``shared``; r -> ``rank``; delta ReLU; z input of a block, ln its first normalisation; t_c, "a
photo of a [class c].".
    A_j^o(z) = W_ju^o delta(W_js delta(W_jd^o ln(z)))                    :meth:`PFedMMA.adapt`
    z <- block_j^o(z) + alpha A_j^o(z), in the last blocks               :meth:`PFedMMA.branches`
    p(c | x) = softmax_c(cos(w(t_c), f(x)) / tau)                        :meth:`PFedMMA.forward`
    W_js <- sum_k |S_k| W_js,k / sum_k |S_k|; W_jd and W_ju stay         :class:`.FedAvg`

Deviations:
    * Adapter: The paper's adapter reads z, and delta is "such as GELU"; fedvlp's, like the released code's, reads
      ln(z), which has the same scale in all blocks, and delta is ReLU.
    * Gradients: The released code divides them by alpha = 0.001, with a rate of 0.001 and a decay of 5e-4. With a rate
      of 0.001 / alpha and a decay of 5e-4 alpha, the SGD steps of fedvlp are the same.
    * Rounds: The released README names base2new.sh (100 rounds of one local epoch, batches of 32) and DomainNet.sh (50,
      1, 32). From base2new-2.sh, fedvlp takes 50 rounds of two local epochs with batches of 16.
    * Depth: In a tower with more blocks than the other, the released code counts blocks with adapters from the first;
      fedvlp counts them from the last.
    * Evaluation: The released code measures every client with the text features of the first client's first round;
      fedvlp uses the client's own.
    * Held-out domains: The probabilities of all clients are averaged, because without personal maps the method is
      zero-shot CLIP.
    * Cohort: In the released code, all clients take part in the first round; in fedvlp, only the cohort does.
"""

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, cosine_logits
from fedvlp.clip.blocks import Branch
from fedvlp.clip.image_towers import ImageTower
from fedvlp.clip.packing import make_rows
from fedvlp.clip.prompted_text import PromptFeatureCache
from fedvlp.clip.text_towers import TextTower
from fedvlp.clip.zero_shot import tokenize_classes
from fedvlp.core.module import HeldOutEvaluation
from fedvlp.core.protocols import Inputs
from fedvlp.methods.prompts import PromptLearner, checked_depth
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveInt


class PFedMMA(PromptLearner):
    """Adapters parallel to both towers: personal maps to a few hidden units and back, with shared maps between them.

    Args:
        rank: Number r of hidden units.
        alpha: Factor on an adapter's output; 0 gives zero-shot CLIP. Halving alpha requires doubling the rate of SGD.
        depth: Number of last blocks with adapters, in both towers; if null, the released code's 8, or all blocks of a
            smaller CLIP.
    """

    needs_images = True  # adapters change the image tower
    personal = ("down", "up")
    held_out_evaluation: HeldOutEvaluation = "mean"

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        rank: PositiveInt = 32,
        alpha: NonNegativeFloat = 0.001,
        depth: PositiveInt | None = None,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=1.0, momentum=0.9, weight_decay=5e-7),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.alpha = alpha
        # Raise an error now if a tower does not support branches; none are added yet.
        towers: dict[str, TextTower | ImageTower]
        towers = {"text": self.clip.text.add_branches({}), "image": self.clip.image.add_branches({})}
        blocks = {name: len(tower.blocks or ()) for name, tower in towers.items()}
        most = min(blocks.values())
        depth = checked_depth(min(8, most) if depth is None else depth, most)
        self.first_block = {name: number - depth for name, number in blocks.items()}  # first block with an adapter
        self.down = nn.ModuleDict({name: BlockMaps(depth, tower.width, rank) for name, tower in towers.items()})
        self.shared = BlockMaps(depth, rank, rank)
        self.up = nn.ModuleDict({name: BlockMaps(depth, rank, tower.width) for name, tower in towers.items()})
        self.rows = make_rows(self.clip.text, tokenize_classes(self.clip, class_names))
        self._cache = PromptFeatureCache()

    def adapt(
        self, tower: str, block: int, tokens: Float[Tensor, "sequences tokens width"]
    ) -> Float[Tensor, "sequences tokens width"]:
        """Compute alpha A_j of normalised tokens, the input of the block's attention.

        ``tower`` is ``text`` or ``image``, and ``block`` the index among the blocks with adapters, from 0.
        """
        hidden = F.relu(self.down[tower](tokens, block))
        hidden = F.relu(self.shared(hidden, block))
        added: Tensor = self.up[tower](hidden, block)
        return self.alpha * added

    def branches(self, tower: str) -> dict[int, Branch]:
        """Collect the adapters that run parallel to a tower's blocks, by block index; none without a client."""
        if not self.uses_personal:
            return {}
        depth = len(self.shared.bias)
        return {self.first_block[tower] + block: partial(self.adapt, tower, block) for block in range(depth)}

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits cos(w(t_c), f(x)) / tau with adapters in both towers."""
        features = self.clip.image.add_branches(self.branches("image")).features(self.precomputed(inputs)["images"])
        # Without gradients, texts are encoded only if their adapters have changed.
        adapters = [*self.down["text"].parameters(), *self.shared.parameters(), *self.up["text"].parameters()]
        tower = self.clip.text.add_branches(self.branches("text"))
        texts = self._cache(self.uses_personal, lambda *_: self.rows.encode_words(tower), *adapters)
        return cosine_logits(features, texts, self.clip.logit_scale)


class BlockMaps(nn.Module):
    """A linear map for each block."""

    def __init__(self, blocks: int, inputs: int, outputs: int) -> None:
        super().__init__()
        # As in the released code: He et al.'s initialisation by the number of outputs.
        self.weight = nn.Parameter((2 / outputs) ** 0.5 * torch.randn(blocks, outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(blocks, outputs))

    def forward(self, tokens: Float[Tensor, "*batch inputs"], block: int) -> Float[Tensor, "*batch outputs"]:
        """Apply a block's map to tokens."""
        return F.linear(tokens, self.weight[block], self.bias[block])
