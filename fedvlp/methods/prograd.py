"""ProGrad under FedAvg: PromptFL with steps that never oppose zero-shot CLIP's gradient.

Paper: Zhu et al., "Prompt-aligned Gradient for Prompt Tuning", ICCV 2023.

Symbols: v prompt, L x D -> ``prompt``; p(x) its probabilities, p_zs(x) zero-shot CLIP's; G_d, G_g gradients of L_ce and
L_kl with respect to v -> ``domain``, ``general``; lambda -> ``projection``.
    L_ce, L_kl = KL(p_zs || p)                               Sec. 3.2; :func:`.distillation_losses`
    G = G_d                                 if G_d . G_g >= 0
    G = G_d - lambda (G_d . G_g / |G_g|^2) G_g          else Sec. 3.2; :func:`aligned_gradient`
With several labels, L_ce and L_kl are PromptFL's.

Deviations:
    * Noise: The released code divides by |G_g|^2 of any size; fedvlp takes G = G_d if |G_g| is at most sqrt(eps) |G_d|,
      with eps the precision of the prompt's type. If both models predict the same, G_g is rounding noise.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, ZeroShotClassifier, cosine_logits
from fedvlp.core.protocols import Inputs, Targets
from fedvlp.methods.promptfl import PromptFL
from fedvlp.methods.prompts import distillation_losses
from fedvlp.utils.ranges import ClosedFraction, Names, PositiveInt


class ProGrad(PromptFL):
    """One text prompt, shared by all classes and clients, trained by steps that do not lead away from zero-shot CLIP.

    Args:
        projection: Share lambda of the part that opposes zero-shot CLIP to remove from a gradient, in [0, 1]; 0 gives
            PromptFL.
        prompt_length: Number of learned vectors L.
        init_words: Initial words in the last vectors, after zeros, as in the released code; random vectors if null.
    """

    teacher: ZeroShotClassifier

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        projection: ClosedFraction = 1.0,
        prompt_length: PositiveInt = 16,
        init_words: str | None = "a photo of a",
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.002, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, prompt_length=prompt_length, optimizer=optimizer)
        if init_words is not None:
            words = self.text.word_vectors(init_words).to(self.prompt)
            self.prompt = nn.Parameter(F.pad(words, (0, 0, prompt_length - len(words), 0)))  # [L, D]
        self.projection = projection
        self.teacher = ZeroShotClassifier(self.clip, class_names, templates=1)

    def losses(self, inputs: Inputs, labels: Targets) -> dict[str, Tensor]:
        """Compute the cross-entropy of a batch, with the aligned gradient in place of its own."""
        features = self.precomputed(inputs)["features"]
        start = self.prompt.detach()
        prompt = start.clone().requires_grad_()
        logits = cosine_logits(features, self.text(prompt), self.clip.logit_scale)
        losses = distillation_losses(logits, labels, self.teacher(features), 0.0)
        # Take both gradients with respect to a copy of the prompt, so that the optimizer does not see them.
        (domain,) = torch.autograd.grad(losses["cross_entropy"], prompt, retain_graph=True)
        (general,) = torch.autograd.grad(losses["kl"], prompt)
        gradient = aligned_gradient(domain, general, self.projection)
        # The loss has the value of the cross-entropy and the aligned gradient.
        return {**losses, "loss": losses["cross_entropy"].detach() + ((self.prompt - start) * gradient).sum()}


def aligned_gradient(
    domain: Float[Tensor, "L D"], general: Float[Tensor, "L D"], projection: float
) -> Float[Tensor, "L D"]:
    """Compute G from G_d of the cross-entropy, G_g of the divergence, and lambda.

    >>> aligned_gradient(torch.tensor([[3.0, -2.0]]), torch.tensor([[0.0, 4.0]]), 1.0).tolist()
    [[3.0, 0.0]]
    >>> aligned_gradient(torch.tensor([[3.0, 2.0]]), torch.tensor([[0.0, 4.0]]), 1.0).tolist()
    [[3.0, 2.0]]
    """
    # If both models predict the same, G_g is the rounding error of p - p_zs, up to eps / tau of G_d with tau = 1 / 100.
    # Such a direction has no meaning, so G_g is used only above sqrt(eps), 3e-4 in single precision.
    square = general.square().sum()
    is_noise = square <= torch.finfo(general.dtype).eps * domain.square().sum()
    share = ((domain * general).sum() / square).clamp_max(0)
    return torch.where(is_noise, domain, domain - projection * share * general)
