"""ProDA under FedAvg: many prompts, with text features treated as draws from a Gaussian of classifiers.

Paper: Lu et al., "Prompt Distribution Learning", CVPR 2022.

Symbols: K prompts, L x D each -> ``prompts``; w_kc text feature of class c under prompt k, of length 1 ->
``class_features``; z image feature, of length 1; P the B prompts of a step; n_k text feature of prompt k without any
class, of length 1; s = 1 / tau; lambda -> ``orthogonality_weight``.
    mu_c = mean_k w_kc, over all K prompts;   p(c | z) = softmax_c(s <z, mu_c>)         :meth:`ProDA.forward`
    training, with mu and the deviations v_kc = w_kc - mu_c only over P, and y the label of z:
    A_c = 1 / (B + 1) sum_{k in P} sum_j z_j^2 (v_kcj - v_kyj)^2                        :func:`logit_variance`
    L_upper = -log softmax_y(s <z, mu_c> + s^2 / 2 A_c)                                 :meth:`ProDA.losses`
    L_so = 1 / (K (K - 1)) sum_{k != k'} |<n_k, n_k'>|                                  :meth:`ProDA.overlap`
    L = L_upper + lambda L_so
A_c is the variance of <z, w_c - w_y> under a Gaussian of classifiers with independent feature dimensions. By Jensen's
inequality, L_upper is at least the expectation of the cross-entropy under this Gaussian.

Class names precede the first quarter of the prompts, are in the middle of the second, and follow the others.

Deviations:
    * Source: The authors released no code; fedvlp follows re-implementations, which agree. They give the positions of
      class names, the division by B + 1, and a mean that is not normalised again. Their values are K = 32, B = 4, L =
      16 and lambda = 0.1.
    * Draws: Re-implementations use all prompts before they repeat one; fedvlp draws each step's prompts from all.
    * Optimizer: fedvlp uses PromptFL's, with a constant rate.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder
from fedvlp.clip.prompted_text import ClassPosition, PromptFeatureCache
from fedvlp.core.protocols import Inputs
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveInt

QUARTERS: tuple[ClassPosition, ...] = ("front", "middle", "end", "end")
"""Position of the class name in each quarter of the prompts."""


class ProDA(PromptLearner):
    """Prompts, shared by all clients, that represent a Gaussian of classifiers.

    Args:
        num_prompts: Number of prompts K, a multiple of 4.
        prompts_per_step: Number of prompts B drawn for a step, at most K.
        orthogonality_weight: Weight lambda of the similarity between prompts without a class, at least 0.
        prompt_length: Number of learned vectors L of a prompt.
    """

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        num_prompts: PositiveInt = 32,
        prompts_per_step: PositiveInt = 4,
        orthogonality_weight: NonNegativeFloat = 0.1,
        prompt_length: PositiveInt = 16,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.002, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        if num_prompts % len(QUARTERS):
            raise UserError(f"Expected num_prompts to be a multiple of {len(QUARTERS)}; got {num_prompts}.")
        if prompts_per_step > num_prompts:
            raise UserError(f"Expected prompts_per_step in [1, {num_prompts}]; got {prompts_per_step}.")
        self.prompts_per_step = prompts_per_step
        self.orthogonality_weight = orthogonality_weight
        self.positions = [QUARTERS[len(QUARTERS) * index // num_prompts] for index in range(num_prompts)]
        self.texts = nn.ModuleDict()
        for position in dict.fromkeys(QUARTERS):
            self.texts[position] = PromptedTextEncoder(
                self.clip, class_names, prompt_length=prompt_length, class_position=position
            )
        self.nameless = PromptedTextEncoder(self.clip, [""], prompt_length=prompt_length)
        starts = [self.nameless.initial_prompt() for _ in range(num_prompts)]
        self.prompts = nn.Parameter(torch.stack(starts))  # [K, L, D]
        self._cache = PromptFeatureCache()

    def class_features(self, prompts: Float[Tensor, "K L D"], indices: Sequence[int]) -> Float[Tensor, "B C d"]:
        """Compute w_kc of the prompts with these indices, ordered by the position of the class name."""
        features = []
        for position, text in self.texts.items():
            # Select prompts one by one, because indexing with a list makes a GPU wait.
            selected = [prompts[index] for index in indices if self.positions[index] == position]
            if selected:
                features.append(text(torch.stack(selected)))
        return F.normalize(torch.cat(features).float(), dim=-1)

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits s <z, mu_c>."""
        images = F.normalize(self.precomputed(inputs)["features"].float(), dim=-1)
        indices = range(len(self.positions))
        mean = self._cache("", lambda prompts: self.class_features(prompts, indices).mean(0), self.prompts)  # mu
        with torch.autocast(images.device.type, enabled=False):
            return self.clip.logit_scale * images @ mean.T

    def overlap(self) -> Float[Tensor, ""]:
        """Compute L_so, the mean of |cos| over all pairs of prompts without a class."""
        texts = F.normalize(self.nameless(self.prompts)[:, 0].float(), dim=-1)  # [K, d]
        with torch.autocast(texts.device.type, enabled=False):
            # Count each pair once, and no prompt with itself.
            pairs = len(texts) * (len(texts) - 1) / 2
            return (texts @ texts.T).abs().triu(1).sum() / pairs

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the upper bound of the expected cross-entropy under newly drawn prompts, plus lambda L_so."""
        images = F.normalize(self.precomputed(inputs)["features"].float(), dim=-1)
        drawn = torch.randperm(len(self.positions))[: self.prompts_per_step].tolist()
        texts = self.class_features(self.prompts, drawn)
        scale = self.clip.logit_scale
        with torch.autocast(images.device.type, enabled=False):
            variance = logit_variance(images, texts, labels)
            upper_bound = F.cross_entropy(scale * images @ texts.mean(0).T + scale**2 / 2 * variance, labels)
        overlap = self.overlap()
        loss = upper_bound + self.orthogonality_weight * overlap
        return {"upper_bound": upper_bound, "overlap": overlap, "loss": loss}


def logit_variance(
    images: Float[Tensor, "B d"], texts: Float[Tensor, "K C d"], labels: Int[Tensor, "B"]
) -> Float[Tensor, "B C"]:
    """Compute A_c, the variance of <z, w_c - w_y> for each image z and its label y.

    >>> texts = torch.tensor([[[1.0], [5.0]], [[3.0], [5.0]]])  # two prompts, two classes, one dimension
    >>> logit_variance(torch.tensor([[2.0]]), texts, torch.tensor([1])).tolist()
    [[2.6666667461395264, 0.0]]
    """
    squares = images.square()
    deviations = texts - texts.mean(0)
    label_deviations = deviations[:, labels]  # [K, B, d]
    # Expand the squared difference into three terms, because the differences would be [K, B, C, d].
    class_term = torch.einsum("bd,kcd->bc", squares, deviations.square())
    label_term = torch.einsum("bd,kbd->b", squares, label_deviations.square())
    product = torch.einsum("bd,kbd,kcd->bc", squares, label_deviations, deviations)
    return (class_term + label_term[:, None] - 2 * product) / (len(texts) + 1)
