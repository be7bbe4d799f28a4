"""pFedMMA: adapters beside the last blocks of both towers, of which the maps that both share are averaged over clients.

Paper: Ghiasvand, Alizadeh and Pedarsani, "pFedMMA: Personalized Federated Fine-Tuning with Multi-Modal Adapter for
Vision-Language Models", ICLR 2026. The adapter is that of MMA (Yang et al., CVPR 2024).

Symbols: o in {T, I} a tower; W_jd^o, r x width, and W_ju^o, width x r, of block j -> ``down[o]``, ``up[o]``; W_js,
r x r, of both towers -> ``shared``; r -> ``rank``; delta ReLU; z what goes into a block, ln its first normalisation;
t_c, "a photo of a [class c].".
    A_j^o(z) = W_ju^o delta(W_js delta(W_jd^o ln(z)))                    :meth:`PFedMMA.adapt`
    z <- block_j^o(z) + alpha A_j^o(z), in the last blocks               :meth:`PFedMMA.branches`
    p(c | x) = softmax_c(cos(w(t_c), f(x)) / tau)                        :meth:`PFedMMA.forward`
    W_js <- sum_k |S_k| W_js,k / sum_k |S_k|; W_jd and W_ju stay         :class:`.FedAvg`

Departures:
    * Adapter: in the paper it reads z, and delta is "such as GELU"; as in the released code it reads ln(z), which has
      the same scale in all blocks, and delta is ReLU.
    * Gradients: the released code divides them by alpha, 0.001, with a rate of 0.001 and a decay of 5e-4; fedvlp has a
      rate of 0.001 / alpha and a decay of 5e-4 alpha, which give the same steps with SGD.
    * Rounds: the README names base2new.sh (100 rounds of one local epoch, batches of 32) and DomainNet.sh (50, 1, 32);
      fedvlp takes 50 rounds of two local epochs with batches of 16 from base2new-2.sh.
    * Depth: in a tower with more blocks than the other, the released code counts blocks with adapters from the first;
      fedvlp counts them from the last.
    * Evaluation: the released code measures every client with the text features of the first client's first round;
      fedvlp uses the client's own.
    * Held-out domains: fedvlp averages the probabilities of all clients, because without personal maps the method is
      zero-shot CLIP.
    * Cohort: in the released code all clients take part in the first round; in fedvlp only the cohort does.
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
    """Learns adapters beside both towers: maps to few hidden units and back for each client, and shared ones between.

    Args:
        rank: Number r of hidden units.
        alpha: What an adapter's output is multiplied by; with 0 it is zero-shot CLIP. Half of it asks for twice the
            rate of SGD.
        depth: Number of last blocks with adapters, in both towers; if not given the released 8, or all blocks of a CLIP
            with fewer.
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
        # Nothing runs beside them yet: towers that cannot have branches are refused here.
        towers: dict[str, TextTower | ImageTower]
        towers = {"text": self.clip.text.add_branches({}), "image": self.clip.image.add_branches({})}
        blocks = {name: len(tower.blocks or ()) for name, tower in towers.items()}
        most = min(blocks.values())
        depth = checked_depth(min(8, most) if depth is None else depth, most)
        self.first_block = {name: number - depth for name, number in blocks.items()}  # of those with adapters
        self.down = nn.ModuleDict({name: BlockMaps(depth, tower.width, rank) for name, tower in towers.items()})
        self.shared = BlockMaps(depth, rank, rank)
        self.up = nn.ModuleDict({name: BlockMaps(depth, rank, tower.width) for name, tower in towers.items()})
        self.rows = make_rows(self.clip.text, tokenize_classes(self.clip, class_names))
        self._cache = PromptFeatureCache()

    def adapt(
        self, tower: str, block: int, tokens: Float[Tensor, "sequences tokens width"]
    ) -> Float[Tensor, "sequences tokens width"]:
        """Compute alpha A_j of normalised tokens.

        Args:
            tower: Which one, ``text`` or ``image``.
            block: Which of those with adapters, from 0.
            tokens: What the block's attention reads.
        """
        hidden = F.relu(self.down[tower](tokens, block))
        hidden = F.relu(self.shared(hidden, block))
        added: Tensor = self.up[tower](hidden, block)
        return self.alpha * added

    def branches(self, tower: str) -> dict[int, Branch]:
        """Return the adapters that run next to a tower's blocks, by index; none if only the shared part is used."""
        if not self.uses_personal:
            return {}
        depth = len(self.shared.bias)
        return {self.first_block[tower] + block: partial(self.adapt, tower, block) for block in range(depth)}

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits cos(w(t_c), f(x)) / tau with adapters beside both towers."""
        features = self.clip.image.add_branches(self.branches("image")).features(self.precomputed(inputs)["images"])
        # Without gradients texts are encoded only when their adapters have changed.
        adapters = [*self.down["text"].parameters(), *self.shared.parameters(), *self.up["text"].parameters()]
        tower = self.clip.text.add_branches(self.branches("text"))
        texts = self._cache(self.uses_personal, lambda *_: self.rows.encode_words(tower), *adapters)
        return cosine_logits(features, texts, self.clip.logit_scale)


class BlockMaps(nn.Module):
    """A linear map for each block."""

    def __init__(self, blocks: int, inputs: int, outputs: int) -> None:
        super().__init__()
        # As in the released code: He et al.'s initialisation with the number of outputs.
        self.weight = nn.Parameter((2 / outputs) ** 0.5 * torch.randn(blocks, outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(blocks, outputs))

    def forward(self, tokens: Float[Tensor, "*batch inputs"], block: int) -> Float[Tensor, "*batch outputs"]:
        """Compute tokens through a block's map."""
        return F.linear(tokens, self.weight[block], self.bias[block])
