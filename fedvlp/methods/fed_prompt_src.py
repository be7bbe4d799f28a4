"""FedPromptSRC: deep prompts in both towers, regularised by the frozen CLIP's features and logits, under FedAvg.

Papers: Khattak et al., "Self-regulating Prompts: Foundational Model Adaptation without Forgetting" (PromptSRC), ICCV
2023, under FedAvg.

Symbols: P_t, J x L x D -> ``prompts["text"]``; P_v, J x L x W -> ``prompts["visual"]``; g, f unit features with prompts
and g0, f0 without; lambda_1 -> ``text_weight``; lambda_2 -> ``image_weight``; mu, sigma -> ``gaussian_mean``,
``gaussian_std``; q, q0 class probabilities softmax(f g / tau) and softmax(f0 g0 / tau).
    separate prompts of each tower, as in IVLP                  Section 3.1; :class:`.IVLP`
    CE + lambda_1 |g - g0| + lambda_2 |f - f0| + KL(q0 || q)    Section 3.2.1; :meth:`FedPromptSRC.losses`
    sum_i w_i P_i, with w_i Gaussian                            Section 3.2.2; :func:`.gaussian_share`
    g0 from the mean over templates                             Section 3.2.3; :class:`.ZeroShotClassifier`

Deviations:
    * Average over time: The paper averages prompts over epochs; fedvlp averages the deployed prompts over rounds, and
      clients continue from the newest prompts.
    * Distances: Like the released code, fedvlp averages distances over elements and the KL over images and classes,
      because the weights 25 and 10 were chosen for these means.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, ZeroShotClassifier, cosine_logits
from fedvlp.core.phases import Phase
from fedvlp.core.protocols import Inputs
from fedvlp.core.strategies import FedAvg, MovingAverage, Strategy, gaussian_share
from fedvlp.methods.ivlp import IVLP
from fedvlp.methods.prompts import distillation_kl
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveFloat, PositiveInt, Templates


class FedPromptSRC(IVLP):
    """Deep prompts for both towers, shared by all clients and kept close to the frozen CLIP.

    Args:
        text_weight: Weight lambda_1 of the distance between text features, at least 0.
        image_weight: Weight lambda_2 of the distance between image features, at least 0.
        templates: Number of CLIP's templates averaged for the text features without prompts, in [1, 80].
        prompt_length: Number of learned vectors L in each block's prompt.
        depth: Number of first blocks with own prompts in both towers; if null, the paper's 9, or all of a smaller CLIP.
        init_words: Initial words of the first block's text prompt; random vectors if null.
        gaussian_mean: Round mu with the largest weight in the deployed prompts; if null, only the last round counts.
        gaussian_std: Standard deviation sigma of these weights, in rounds.
    """

    def __init__(  # noqa: PLR0913  (the paper's options)
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        text_weight: NonNegativeFloat = 25.0,
        image_weight: NonNegativeFloat = 10.0,
        templates: Templates = 60,
        prompt_length: PositiveInt = 4,
        depth: PositiveInt | None = None,
        init_words: str | None = "a photo of a",
        gaussian_mean: PositiveFloat | None = 15.0,
        gaussian_std: PositiveFloat = 1.0,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.0025, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(
            class_names, clip, prompt_length=prompt_length, depth=depth, init_words=init_words, optimizer=optimizer
        )
        self.text_weight = text_weight
        self.image_weight = image_weight
        self.gaussian_mean = gaussian_mean
        self.gaussian_std = gaussian_std
        self.teacher = ZeroShotClassifier(self.clip, class_names, templates)

    def configure_phases(self) -> Sequence[Phase]:
        """Describe the only phase; the server averages the deployed prompts over rounds (Section 3.2.2)."""
        strategy: Strategy = FedAvg()
        if self.gaussian_mean is not None:
            # Clients start from the newest prompts; only the deployed prompts are averaged over rounds.
            strategy = MovingAverage(strategy, gaussian_share(self.gaussian_mean, self.gaussian_std), ("prompts",))
        return (Phase("train", train=("prompts",), upload=("prompts",), strategy=strategy),)

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the cross-entropy of a batch and the three distances from the frozen CLIP (Section 3.2.1)."""
        images = self.precomputed(inputs)["images"]
        text = self.prompted.text_features(self.prompts)
        image = self.prompted.visual.encode(images, self.prompts["visual"])
        logits = cosine_logits(image, text, self.clip.logit_scale)
        # The targets: the frozen CLIP's features of the same images.
        with torch.no_grad():
            frozen = self.clip.encode_image(images)
            reference = self.teacher(frozen)
        losses = {
            "cross_entropy": F.cross_entropy(logits, labels),
            "text_distance": _mean_distance(text, self.teacher.text_features),
            "image_distance": _mean_distance(image, frozen),
            "kl": distillation_kl(reference, logits) / logits.shape[1],
        }
        distances = self.text_weight * losses["text_distance"] + self.image_weight * losses["image_distance"]
        return {**losses, "loss": losses["cross_entropy"] + distances + losses["kl"]}


def _mean_distance(ours: Float[Tensor, "rows d"], frozen: Float[Tensor, "rows d"]) -> Float[Tensor, ""]:
    return F.l1_loss(F.normalize(ours.float(), dim=-1), F.normalize(frozen.float(), dim=-1))
