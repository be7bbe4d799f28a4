"""PromptFL: one prompt, learned by all clients and averaged.

Papers: Guo et al., "PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of Models", IEEE TMC 2023;
the prompt is CoOp's (Zhou et al., IJCV 2022).

Symbols: v prompt, L x D -> ``prompt``; f(x) image feature -> ``features``; w_c(v) text feature of "[SOS][v][class c]."
    p(c | x) = softmax_c(cos(w_c(v), f(x)) / tau)    CoOp, Eq. 2; :meth:`PromptFL.forward`
    v <- sum_k |S_k| v_k / sum_k |S_k|               PromptFL, Eq. 3; :class:`.FedAvg`
With ``kl_weight`` (beta), it is TRIP with one expert, a control that separates the effects of TRIP's loss and routing.
    CE + beta KL(p_zs || p), p_zs of zero-shot CLIP  TRIP, Eqs. 10-12; :func:`.distillation_losses`
With several labels, KL becomes the sum over all labels of KL(p_zs(l | x) || p(l | x)), of Bernoulli distributions.

Deviations:
    * Average: The released code stores prompts by reference, so its unweighted "mean" is the last client's prompt;
      fedvlp weights by training images, as the paper does.
    * Learning rate: The released code shares one CoOp schedule among all clients and advances it after every local
      epoch of every client. In fedvlp, the rate is constant, so that a run can be extended.
    * Optimizer: The released code uses SGD with rate 0.001 and 5 epochs per round (``promptfl_released``); fedvlp uses
      rate 0.002, as CoOp's released code does.
"""

import torch
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder, ZeroShotClassifier, cosine_logits
from fedvlp.clip.prompted_text import ClassPosition
from fedvlp.core.protocols import Inputs, Targets
from fedvlp.methods.prompts import PromptLearner, distillation_losses
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveInt, Templates


class PromptFL(PromptLearner):
    """One learned text prompt, shared by all classes and clients.

    Args:
        kl_weight: Weight beta of the divergence from zero-shot CLIP, at least 0; the paper has no such term.
        templates: Number of CLIP's templates averaged for the zero-shot teacher, in [1, 80].
        prompt_length: Number of learned vectors L.
        init_words: Initial words of the prompt, such as "a photo of a"; random vectors if omitted.
        class_position: Position of the class name: after the prompt (end), in its middle, or before it (front).
        class_specific: Whether each class has its own prompt (CoOp's CSC). The method is then C times as large and
            classifies only the training classes.

    >>> PromptFL(["cat", "dog"], clip="fedvlp-tiny", prompt_length=4).prompt.shape
    torch.Size([4, 64])
    """

    supports_several_labels = True

    def __init__(  # noqa: PLR0913  (the papers' options)
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        kl_weight: NonNegativeFloat = 0.0,
        templates: Templates = 60,
        prompt_length: PositiveInt = 16,
        init_words: str | None = None,
        class_position: ClassPosition = "end",
        class_specific: bool = False,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.002, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.text = PromptedTextEncoder(
            self.clip,
            class_names,
            prompt_length=prompt_length,
            class_position=class_position,
            class_specific=class_specific,
        )
        starts = [self.text.initial_prompt(init_words) for _ in (class_names if class_specific else [""])]
        self.prompt = nn.Parameter(torch.stack(starts) if class_specific else starts[0])  # [C, L, D] or [L, D]
        self.kl_weight = kl_weight
        self.teacher = ZeroShotClassifier(self.clip, class_names, templates) if kl_weight else None

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits cos(w_c, f(x)) / tau (CoOp, Eq. 2)."""
        return self.logits(self.precomputed(inputs)["features"])

    def logits(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B C"]:
        """Compute the logits of image features."""
        # The encoder expects class-specific prompts as one long prompt and splits it by class.
        return cosine_logits(features, self.text(self.prompt.flatten(0, -2)), self.clip.logit_scale)

    def losses(self, inputs: Inputs, labels: Targets) -> dict[str, Tensor]:
        """Compute the cross-entropy of a batch, plus beta KL(zero-shot || local) if there is a teacher."""
        # The frozen image tower does not run, because its features were computed once per image.
        features = self.precomputed(inputs)["features"]
        logits = self.logits(features)
        if self.teacher is None:
            return {"loss": self.loss(logits, labels)}
        return distillation_losses(logits, labels, self.teacher(features), self.kl_weight)
