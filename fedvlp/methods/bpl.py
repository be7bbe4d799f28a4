"""BPL under FedAvg: a learned distribution of prompts, which classifies by the mean prediction over its draws.

Paper: Derakhshani et al., "Bayesian Prompt Learning for Image-Language Model Generalization", ICCV 2023. The equations
follow its released code.

Symbols: p prompt, L x D -> ``prompt``; r_s draw s of S, added to all vectors of p; mu, sigma^2 of r's posterior q,
[D] -> ``mean`` and the exponential of ``log_variance``; z image feature of length 1; beta -> ``kl_weight``.
    r_s = mu + sigma e_s, e_s ~ N(0, 1)                           :meth:`BPL.log_probabilities`
    unconditional: mu, sigma are parameters                       :meth:`BPL.posterior`
    conditional: two perceptrons compute mu(z), log sigma^2(z)    :meth:`BPL.posterior`
    p(c | x) = 1/S sum_s softmax_c(cos(w_c(p + r_s), x) / tau)    :meth:`BPL.log_probabilities`
    -log p(y | x) + beta / D KL(q || N(0, 1))                     :meth:`BPL.losses`
    KL / D = mean of 1/2 (mu^2 + sigma^2 - 1 - log sigma^2)

Deviations:
    * Average: The paper is centralised; fedvlp averages log sigma^2, which gives the geometric mean of the clients'
      variances and not a posterior given all images.
    * Evaluation: The released code draws e_s for each batch, so its accuracy varies; fedvlp fixes the draws for all
      images, clients and runs.
    * Conditional form: The released code is correct only for batches of one image; fedvlp gives each image its own
      draws, each added to all vectors, so larger batches are correct, too.
    * Draws: The released instructions choose S and the epochs per data set; fedvlp uses the released config's S = 10.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder, cosine_logits
from fedvlp.clip.prompted_text import PromptFeatureCache
from fedvlp.core.protocols import Inputs
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveInt


class BPL(PromptLearner):
    """One text prompt, shared by all classes and clients, with a learned distribution of random shifts.

    Args:
        conditional: Whether two perceptrons compute the distribution per image; otherwise all images share it.
        samples: Number of draws S, in training and in classification.
        kl_weight: Weight beta of the divergence from N(0, 1), at least 0.
        prompt_length: Number of learned vectors L.
        init_words: Initial words of the prompt; random vectors if null.
    """

    noise: Tensor

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        conditional: bool = False,
        samples: PositiveInt = 10,
        kl_weight: NonNegativeFloat = 0.001,
        prompt_length: PositiveInt = 4,
        init_words: str | None = "a photo of a",
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.002, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.kl_weight = kl_weight
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length)
        self.prompt = nn.Parameter(self.text.initial_prompt(init_words))  # [L, D]
        width = self.clip.text_width
        self.networks: nn.ModuleDict | None = None
        if conditional:
            inputs = self.clip.embed_dim
            hidden = inputs // 2
            self.networks = nn.ModuleDict()
            for name in ("mean", "log_variance"):
                layers = [nn.Linear(inputs, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU()]
                self.networks[name] = nn.Sequential(*layers, nn.Linear(hidden, width))
        else:
            self.mean = nn.Parameter(torch.zeros(width))
            self.log_variance = nn.Parameter(torch.rand(width))
        # A fixed seed, so that all clients and all users of the prompt classify identically.
        noise = torch.randn(samples, width, generator=torch.Generator().manual_seed(0))
        self.register_buffer("noise", noise, persistent=False)  # [S, D]
        self._cache = PromptFeatureCache()

    def posterior(self, features: Float[Tensor, "B d"]) -> tuple[Float[Tensor, "*each D"], Float[Tensor, "*each D"]]:
        """Compute mu and log sigma^2, per image if they are conditional, otherwise once for all."""
        if self.networks is None:
            return self.mean, self.log_variance
        unit = F.normalize(features, dim=-1)
        return self.networks["mean"](unit), self.networks["log_variance"](unit)

    def log_probabilities(
        self,
        features: Float[Tensor, "B d"],
        mean: Float[Tensor, "*each D"],
        log_variance: Float[Tensor, "*each D"],
        noise: Float[Tensor, "... S D"],
    ) -> Float[Tensor, "B C"]:
        """Compute log p(c | x), where p is the mean over draws."""
        residuals = mean[..., None, :] + (log_variance / 2).exp()[..., None, :] * noise  # [*each, S, D]
        prompts = self.prompt + residuals[..., None, :]  # [*each, S, L, D]
        # Unconditional prompts are the same for all images and are encoded once; conditional ones differ by image.
        texts = self._cache("", self.text, prompts) if self.networks is None else self.text(prompts)  # [*each, S, C, d]
        logits = cosine_logits(features, texts.flatten(-3, -2), self.clip.logit_scale)
        log_per_draw = logits.reshape(logits.shape[0], *texts.shape[-3:-1]).log_softmax(-1)  # [B, S, C]
        return log_per_draw.logsumexp(1) - math.log(log_per_draw.shape[1])

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute log p(c | x) under the fixed draws; the softmax of these logits is p."""
        features = self.precomputed(inputs)["features"]
        return self.log_probabilities(features, *self.posterior(features), self.noise)

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute -log p(y | x) of a batch under new draws, plus beta times the divergence."""
        features = self.precomputed(inputs)["features"]
        mean, log_variance = self.posterior(features)
        noise = torch.randn(*mean.shape[:-1], *self.noise.shape).to(mean.device, non_blocking=True)
        cross_entropy = F.nll_loss(self.log_probabilities(features, mean, log_variance, noise), labels)
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).mean() / 2
        loss = cross_entropy + self.kl_weight * divergence
        return {"cross_entropy": cross_entropy, "divergence": divergence, "loss": loss}
