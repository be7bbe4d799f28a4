"""FedMaPLe: deep text prompts, and visual prompts computed from them by linear maps, averaged over clients.

Papers: Khattak et al., "MaPLe: Multi-modal Prompt Learning", CVPR 2023, under FedAvg, as in PLAN's tables.

Symbols: P_j, text prompts of block j + 1, L x D -> ``prompts[j]``; F_j -> ``couplings[j]``; J -> ``depth``.
    both towers with prompts, replaced block by block          Sections 3.2.1, 3.2.2; :class:`.DeepPromptedCLIP`
    visual prompts F_j(P_j), with F_j linear from D to W       Section 3.2.3; :meth:`FedMaPLe.deep_prompts`
    p(c | x) = softmax_c(cos(w_c, f(x)) / tau)                 Section 3.1; :meth:`FedMaPLe.forward`

A prompt shorter than ``init_words`` replaces the first words, and the other words remain before the class name, as in
the released code: "[v1][v2] of a dog." with L = 2.

Deviations:
    * Long prompts: If a prompt is longer than the words, the released code drops them; fedvlp appends random vectors.
    * Maps: The released code starts all F_j but the first from copies of one map; fedvlp starts each from its own
      values, with biases of 0.
"""

from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.protocols import Inputs
from fedvlp.methods.prompts import BlockLinear, DeepPromptedCLIP, PromptLearner
from fedvlp.utils.ranges import Names, PositiveInt


class FedMaPLe(PromptLearner):
    """Deep text prompts, and maps from them to visual prompts, shared by all clients.

    Args:
        prompt_length: Number of learned vectors L in each block's prompt.
        depth: Number of first blocks with own prompts in both towers; if null, the paper's 9, or all of a smaller CLIP.
        init_words: Initial words of the first block's prompt; random vectors if null.
    """

    needs_images = True  # visual prompts change the image tower
    supports_several_labels = True

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        prompt_length: PositiveInt = 2,
        depth: PositiveInt | None = None,
        init_words: str | None = "a photo of a",
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.0035, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.prompted = DeepPromptedCLIP(self.clip, class_names, prompt_length, init_words)
        self.prompts = nn.Parameter(self.prompted.initial_text_prompts(depth))  # [J, L, D]
        self.couplings = BlockLinear(len(self.prompts), self.clip.text_width, self.clip.image_width)

    def deep_prompts(self) -> dict[str, Tensor]:
        """Compute the prompts `text` [J, L, D] and, from them, `visual` [J, L, W] (MaPLe, Section 3.2.3)."""
        # The couplings expect a batch of prompts; here its size is 1.
        return {"text": self.prompts, "visual": self.couplings(self.prompts[None])[0]}

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits cos(w_c, f(x)) / tau with prompts in both towers."""
        return self.prompted.logits(self.precomputed(inputs)["images"], self.deep_prompts())
