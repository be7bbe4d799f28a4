"""PromptFolio: a prompt of all clients and one of the client's own, whose text features are mixed by a fixed share.

Paper: Pan et al., "Federated Learning from Vision-Language Foundation Models: Theoretical Analysis and Method",
NeurIPS 2024.

Symbols: p_G, p_L, L x D -> ``global_prompt``, ``local_prompt``; g_c(p) text feature of class c under p, of length 1;
f(x) image feature, of length 1; theta -> ``local_share``.
    w_c = (1 - theta) g_c(p_G) + theta g_c(p_L)         of length 1 at most, and not normalised again
    p(c | x) = softmax_c(<w_c, f(x)> / tau)             :meth:`PromptFolio.forward`, cross-entropy
    p_G <- sum_k |S_k| p_G,k / sum_k |S_k|; p_L stays   :class:`.FedAvg`

Departures:
    * Share: the paper derives a best theta from quantities that nobody measures; as in the released code it is a
      constant.
    * Weights: the released code reads uploads in another order than it keeps them, so a prompt gets another client's
      weight.
    * Values: theta 0.4, 8 tokens, batches of 16 and ten rounds of 5 epochs are the released code's; the rate is
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
    """Learns a prompt that is shared and one for each client, whose text features are mixed.

    Args:
        local_share: Share theta of the client's own prompt, in [0, 1]: with 0 it is PromptFL, with 1 each client is on
            its own.
        prompt_length: Number of learned vectors L of a prompt.
        options: Evaluation of held-out domains, as of :class:`.PersonalPromptLearner`.
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
        """Compute the logits <w_c, f(x)> / tau, or those under p_G where the shared part is on its own."""
        features = self.precomputed(inputs)["features"]
        shared = cosine_logits(features, self.text(self.global_prompt), self.clip.logit_scale)
        # p_G alone is what a domain gets that no client has.
        if not self.uses_personal:
            return shared
        local = cosine_logits(features, self.text(self.local_prompt), self.clip.logit_scale)
        # A product with a mix of features is the same mix of the products.
        return (1 - self.local_share) * shared + self.local_share * local
