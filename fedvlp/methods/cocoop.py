"""CoCoOp under FedAvg: a prompt that a small network shifts for each image, learned by all clients and averaged.

Paper: Zhou et al., "Conditional Prompt Learning for Vision-Language Models", CVPR 2022.

Symbols: v_1 .. v_M context, L x D -> ``prompt``; h_theta Meta-Net -> ``meta_net``; pi token -> its output [B, D];
x image feature -> ``features``; g text tower, t_i(x) "[SOS][v(x)][class i]." -> ``text``.
    v_m(x) = v_m + pi, pi = h_theta(x)                   Sec. 3.2; :meth:`CoCoOp.prompts`
    p(y | x) = softmax_y(cos(x, g(t_y(x))) / tau)        Eq. 3; :meth:`CoCoOp.logits`, cross-entropy
    h_theta: Linear - ReLU - Linear, d -> d / 16 -> D    Sec. 3.2; ``reduction``

Deviations:
    * Schedule: The paper has ten epochs; fedvlp has ten rounds of one epoch, and cosine and warm-up count rounds.
    * Meta-Net: The paper does not state its input; fedvlp, like the released code, uses the normalised image feature.
"""

import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, cosine_logits
from fedvlp.methods.promptfl import PromptFL
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, PositiveInt


class CoCoOp(PromptFL):
    """One text prompt, shared by all classes and clients, and a network that shifts it for each image.

    Args:
        reduction: Reduction of the Meta-Net to d / reduction hidden units, in [1, d].
        prompt_length: Number of learned vectors L.
        init_words: Initial words of the prompt; random vectors if null.
    """

    supports_several_labels = False

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        reduction: PositiveInt = 16,
        prompt_length: PositiveInt = 4,
        init_words: str | None = "a photo of a",
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.002, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, prompt_length=prompt_length, init_words=init_words, optimizer=optimizer)
        width = self.clip.embed_dim
        if reduction > width:
            raise UserError(f"Expected a reduction in [1, {width}], the width of an image feature; got {reduction}.")
        hidden = width // reduction
        self.meta_net = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, self.clip.text_width))

    def prompts(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B L D"]:
        """Compute each image's prompt v(x); one shift applies to all its vectors (Sec. 3.2)."""
        shifts: Tensor = self.meta_net(F.normalize(features, dim=-1))  # pi, [B, D]
        return self.prompt + shifts[:, None]

    def logits(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B C"]:
        """Compute the logits cos(x, g(t(x))) / tau of each image under its own prompt (Eq. 3)."""
        return cosine_logits(features, self.text(self.prompts(features)), self.clip.logit_scale)
