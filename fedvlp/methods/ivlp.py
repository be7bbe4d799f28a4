"""IVLP: separate prompts in both towers, averaged over clients.

Papers: Wang et al., "An Empirical Study of Federated Prompt Learning for Vision Language Model", IJCAI 2025.
Independent vision-language prompting is the baseline of MaPLe and PromptSRC (Khattak et al., CVPR and ICCV 2023).

Symbols: P^T, J x L x D -> ``prompts["text"]``; P^V, J x L x W -> ``prompts["visual"]``; J -> ``depth``.
    prompts replaced before each of the first J blocks    :class:`.DeepPromptedCLIP`
    p(c | x) = softmax_c(cos(w_c(P^T), f(x; P^V)) / tau)  :meth:`IVLP.forward`
It is FedMaPLe without its maps from text to visual prompts, and FedPromptSRC without its regularisation by the frozen
CLIP. With prompts in only one tower, it is the study's LPT or VPT, which are PromptFL and FedPR (see the card).

Deviations:
    * Average: The released code averages all tensors of the model, including frozen ones, in half precision; fedvlp
      sends only prompts, in single precision. The average would otherwise round the frozen CLIP in each round.
    * Long prompts: If a prompt is longer than the words, the released code drops them; fedvlp appends random vectors.
"""

from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.protocols import Inputs
from fedvlp.methods.prompts import DeepPromptedCLIP, PromptLearner, initial_prompt
from fedvlp.utils.ranges import Names, PositiveInt


class IVLP(PromptLearner):
    """Independent prompts for both towers, shared by all clients.

    Args:
        prompt_length: Number of learned vectors L in each block's prompt, equal in both towers.
        depth: Number J of first blocks with own prompts, in both towers; if null, 9, or all blocks of a smaller CLIP.
        init_words: Initial words of the first block's text prompt; random vectors if null.
    """

    needs_images = True  # visual prompts change the image tower

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        prompt_length: PositiveInt = 16,
        depth: PositiveInt | None = 1,
        init_words: str | None = None,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.001, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.prompted = DeepPromptedCLIP(self.clip, class_names, prompt_length, init_words)
        text = self.prompted.initial_text_prompts(depth)
        visual = initial_prompt((*text.shape[:2], self.clip.image_width))
        self.prompts = nn.ParameterDict({"text": text, "visual": visual})

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits cos(w_c, f(x)) / tau with prompts in both towers."""
        return self.prompted.logits(self.precomputed(inputs)["images"], self.prompts)
