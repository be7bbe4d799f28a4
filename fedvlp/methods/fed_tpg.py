"""FedTPG: a network generates the prompt from the class names; clients train the network, and the server averages it.

Paper: Qiu et al., "Federated Text-driven Prompt Generation for Vision-Language Models", ICLR 2024.

Symbols: T, C x d, text features of the bare class names -> ``texts``; Q, m x D, learned queries -> ``queries``; W_K,
W_V -> ``attention``; h MLP -> ``widen``, ``narrow``; f_theta -> ``network``; v_1 .. v_m -> its output [L, D].
    v = f_theta(T) = h(CrossAttention(Q, T W_K, T W_V))    Sec. 3; :meth:`PromptNetwork.forward`
    p(c | x) = softmax_c(cos(w_c(v), f(x)) / tau)          Sec. 3; :meth:`FedTPG.forward`, cross-entropy
    theta <- mean over clients of theta_k                  Sec. 3; :class:`.FedAvg`, by training images
theta does not depend on the classes, so it can be loaded into a module with different classes. With several labels, T
contains the negative class.

Deviations:
    * Classes: The paper's clients generate prompts from their own classes; fedvlp's clients all use the same classes.
    * Network: The paper does not specify it; fedvlp follows the released code. It has layer norms before attention and
      MLP, biases, no residual around the attention, and a residual around the MLP of 4 D units with a gated GELU.
    * Rounds: The paper has 500 rounds of one epoch, about one step; fedvlp uses PromptFL's, with a cosine over them.
"""

import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder, cosine_logits, zero_shot_text_features
from fedvlp.core.protocols import Inputs
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, PositiveInt


class FedTPG(PromptLearner):
    """A network, shared by all clients, that generates one text prompt from the names of all classes.

    Args:
        prompt_length: Number of queries and generated vectors m.
        heads: Number of attention heads; must divide the width of a token.
    """

    supports_several_labels = True
    texts: Tensor  # [C, d]

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        prompt_length: PositiveInt = 4,
        heads: PositiveInt = 4,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.003, momentum=0.9, weight_decay=1e-5),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        width = self.clip.text_width
        if width % heads:
            raise UserError(f"Expected heads that divide {width}, the width of a token; got {heads}.")
        self.register_buffer("texts", zero_shot_text_features(self.clip, class_names, ["{}"]), persistent=False)
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length)
        self.network = PromptNetwork(self.text.initial_prompt(), self.clip.embed_dim, heads)

    def prompt(self) -> Float[Tensor, "L D"]:
        """Compute v, the common prompt of all classes."""
        return self.network(self.texts)

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits cos(w_c(v), f(x)) / tau."""
        features = self.precomputed(inputs)["features"]
        return cosine_logits(features, self.text(self.prompt()), self.clip.logit_scale)


class PromptNetwork(nn.Module):
    """Network that computes one token per query in Q from a set of text features, regardless of their order."""

    def __init__(self, queries: Float[Tensor, "L D"], text_width: int, heads: int) -> None:
        super().__init__()
        width = queries.shape[-1]
        self.queries = nn.Parameter(queries)
        self.query_norm = nn.LayerNorm(width)
        self.text_norm = nn.LayerNorm(text_width)
        self.attention = nn.MultiheadAttention(width, heads, kdim=text_width, vdim=text_width)
        self.mlp_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 8 * width)  # units and their gates
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, texts: Float[Tensor, "C d"]) -> Float[Tensor, "L D"]:
        """Compute h(CrossAttention(Q, T W_K, T W_V)) (Sec. 3)."""
        texts = self.text_norm(texts)
        attended: Tensor = self.attention(self.query_norm(self.queries), texts, texts, need_weights=False)[0]  # [L, D]
        # As in the released code, only the MLP has a residual.
        units, gates = self.widen(self.mlp_norm(attended)).chunk(2, dim=-1)
        return attended + self.narrow(units * F.gelu(gates))
