"""Single-domain tuning: each client learns CoOp's prompt on its own data and sends nothing.

Paper: the prompt is CoOp's (Zhou et al., IJCV 2022); the baseline is that of the federated prompt-learning papers.

Symbols: v_k prompt of client k, L x D -> ``prompt``; f(x) image feature -> ``features``.
    p(c | x) = softmax_c(cos(w_c(v_k), f(x)) / tau)    CoOp, Eq. 2; :meth:`SingleDomain.forward`

Departures:
    * The papers do not say how a held-out domain is tested: here with each client's prompt, and the mean of the
      accuracies is reported.
    * Optimizer, rounds and batch are PromptFL's.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder, cosine_logits
from fedvlp.core.phases import Phase
from fedvlp.core.protocols import Inputs
from fedvlp.core.strategies import Local
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.ranges import Names, PositiveInt


class SingleDomain(PromptLearner):
    """Learns one text prompt for each client, without a server.

    Args:
        prompt_length: Number of learned vectors L.
        init_words: Words that the prompt starts from, such as "a photo of a"; random vectors if not given.
    """

    personal = ("prompt",)

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        prompt_length: PositiveInt = 16,
        init_words: str | None = None,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.002, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length)
        self.prompt = nn.Parameter(self.text.initial_prompt(init_words))  # [L, D]

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Returns the logits cos(w_c, f(x)) / tau (CoOp, Eq. 2)."""
        features = self.precomputed(inputs)["features"]
        return cosine_logits(features, self.text(self.prompt), self.clip.logit_scale)

    def configure_phases(self) -> Sequence[Phase]:
        """Returns one phase that trains and sends nothing."""
        return (Phase("prompt", train=("prompt",), upload=(), strategy=Local()),)
