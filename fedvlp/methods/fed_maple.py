"""FedMaPLe: deep text prompts, and visual prompts that linear maps make of them, averaged over clients.

Papers: Khattak et al., "MaPLe: Multi-modal Prompt Learning", CVPR 2023, under FedAvg, as PLAN's tables have it.

Symbols: P_j, text prompts of block j + 1, L x D -> ``prompts[j]``; F_j -> ``couplings[j]``; J -> ``depth``.
    both towers with prompts, replaced block by block          Sections 3.2.1, 3.2.2; :class:`.DeepPromptedCLIP`
    visual prompts F_j(P_j), with F_j linear from D to W       Section 3.2.3; :meth:`FedMaPLe.deep_prompts`
    p(c | x) = softmax_c(cos(w_c, f(x)) / tau)                 Section 3.1; :meth:`FedMaPLe.forward`
    cross-entropy                                              :meth:`.PromptLearner.training_step`
    P, F <- sum_k |S_k| (P_k, F_k) / sum_k |S_k|               :class:`.FedAvg`

A prompt shorter than ``init_words`` takes the place of the first of them; the others stay words before the class's
name, as in the released code: "[v1][v2] of a dog." with L = 2.

Departures:
    * Long prompts: a prompt longer than the words continues with random vectors; the released code then drops the
      words.
    * Maps: each F_j starts from its own values; in the released code all but the first are copies. Biases start at 0.
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
    """Learns deep text prompts and the maps that make visual prompts of them, shared by all clients.

    Args:
        prompt_length: Number of learned vectors L in a block's prompt.
        depth: Number of first blocks with prompts of their own, in both towers; if not given the paper's 9, or all
            blocks of a CLIP with fewer.
        init_words: Words that the first block's prompt starts from; random vectors if not given.
    """

    needs_images = True  # visual prompts change the image tower

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
        """Return the prompts `text` [J, L, D] and, made of them, `visual` [J, L, W] (MaPLe, Section 3.2.3)."""
        # The couplings take a stack of prompts, of which there is one.
        return {"text": self.prompts, "visual": self.couplings(self.prompts[None])[0]}

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits cos(w_c, f(x)) / tau with prompts in both towers."""
        return self.prompted.logits(self.precomputed(inputs)["images"], self.deep_prompts())
