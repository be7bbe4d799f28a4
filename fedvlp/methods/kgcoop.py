"""KgCoOp under FedAvg: PromptFL with a classifier that is kept close to a handwritten prompt's.

Paper: Yao et al., "Visual-Language Prompt Tuning with Knowledge-guided Context Optimization", CVPR 2023.

Symbols: w_i text feature of class i under the learned prompt -> ``self.text(prompt)``; w_i^clip text feature of "a
photo of a {class}." -> ``written.text_features``; N_c classes; lambda -> ``distance_weight``.
    L_kg = 1 / N_c sum_i |w_i - w_i^clip|^2    Sec. 3.2; :meth:`KgCoOp.distance`
    L = L_ce + lambda L_kg                     Sec. 3.2; :meth:`KgCoOp.losses`
With several labels, L_ce is PromptFL's, and N_c also counts the negative class.

Deviations:
    * Distance: The paper does not state whether features in L_kg are normalised; the released code takes the mean of
      1 - cos; fedvlp normalises them, as in the classifier. Its distance is twice the released one, so the released
      weight 8 is a ``distance_weight`` of 4.
"""

import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, ZeroShotClassifier, cosine_logits
from fedvlp.core.protocols import Inputs, Targets
from fedvlp.methods.promptfl import PromptFL
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveInt


class KgCoOp(PromptFL):
    """One text prompt, shared by all classes and clients, with text features close to a handwritten prompt's.

    Args:
        distance_weight: Weight lambda of the distance to the handwritten prompt's text features, at least 0.
        prompt_length: Number of learned vectors L.
        init_words: Initial words of the prompt, such as "a photo of a"; random vectors if null.
    """

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        distance_weight: NonNegativeFloat = 8.0,
        prompt_length: PositiveInt = 4,
        init_words: str | None = "a photo of a",
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.002, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, prompt_length=prompt_length, init_words=init_words, optimizer=optimizer)
        self.distance_weight = distance_weight
        self.written = ZeroShotClassifier(self.clip, class_names, templates=1)

    def distance(self, texts: Float[Tensor, "C d"]) -> Float[Tensor, ""]:
        """Compute the mean over classes of the squared distance to the handwritten prompt's features, in [0, 4]."""
        # For unit features, the squared distance is 2 - 2 cos.
        return (F.normalize(texts, dim=-1) - self.written.text_features).square().sum(-1).mean()

    def losses(self, inputs: Inputs, labels: Targets) -> dict[str, Tensor]:
        """Compute the cross-entropy of a batch plus lambda times the distance (Sec. 3.2)."""
        texts = self.text(self.prompt)  # [C, d]
        logits = cosine_logits(self.precomputed(inputs)["features"], texts, self.clip.logit_scale)
        cross_entropy = self.loss(logits, labels)
        distance = self.distance(texts)
        loss = cross_entropy + self.distance_weight * distance
        return {"cross_entropy": cross_entropy, "distance": distance, "loss": loss}
