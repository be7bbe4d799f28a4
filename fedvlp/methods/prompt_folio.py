"""PromptFolio: a shared and a personal prompt, with text features mixed by a fixed share.

Paper: Pan et al., "Federated Learning from Vision-Language Foundation Models: Theoretical Analysis and Method",
NeurIPS 2024.

Symbols: p_G, p_L, L x D -> ``global_prompt``, ``local_prompt``; g_c(p) text feature of class c under p, of length 1;
f(x) image feature, of length 1; theta -> ``local_share``.
    w_c = (1 - theta) g_c(p_G) + theta g_c(p_L)         length at most 1, not normalised again
    p(c | x) = softmax_c(<w_c, f(x)> / tau)             :meth:`PromptFolio.forward`, cross-entropy
    p_G <- sum_k |S_k| p_G,k / sum_k |S_k|; p_L stays   :class:`.FedAvg`

Deviations:
    * Share: The paper derives an optimal theta from quantities that are not measured; fedvlp, like the released code,
      uses a constant.
    * Weights: The released code reads uploads in a different order than it stores them, so a prompt gets another
      client's weight; fedvlp weights each prompt by its own client's images.
    * Values: The released code's theta of 0.4, 8 tokens, batches of 16 and ten rounds of 5 epochs. The rate is
      constant.
"""

from typing import Any

from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, cosine_logits
from fedvlp.core.protocols import Inputs
from fedvlp.methods.prompts import PersonalPromptLearner
from fedvlp.utils.ranges import ClosedFraction, Names, PositiveInt


class PromptFolio(PersonalPromptLearner):
    """A shared and a personal prompt, with mixed text features.

    Args:
        local_share: Share theta of the personal prompt, in [0, 1]; 0 gives PromptFL, 1 separate training per client.
        prompt_length: Number of learned vectors L of a prompt.
        options: Evaluation of held-out domains, as in :class:`.PersonalPromptLearner`.
    """

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        local_share: ClosedFraction = 0.4,
        prompt_length: PositiveInt = 8,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.002, momentum=0.9, weight_decay=5e-4),
        **options: Any,
    ) -> None:
        super().__init__(class_names, clip, prompt_length=prompt_length, optimizer=optimizer, **options)
        self.local_share = local_share

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits <w_c, f(x)> / tau, or under p_G if there is no client."""
        features = self.precomputed(inputs)["features"]
        shared = cosine_logits(features, self.text(self.global_prompt), self.clip.logit_scale)
        # A held-out domain has no client, so only p_G classifies.
        if not self.uses_personal:
            return shared
        local = cosine_logits(features, self.text(self.local_prompt), self.clip.logit_scale)
        # Mixing logits equals mixing features, because the product is linear.
        return (1 - self.local_share) * shared + self.local_share * local
