"""FedAPT: class prompts, scaled by a domain's fixed random key; a domain classifier mixes the keys for each image.

Paper: Su et al., "Federated Adaptive Prompt Tuning for Multi-Domain Collaborative Learning", AAAI 2024; the part on
labelled images.

Symbols: p meta prompt, C x L x D -> ``prompt``; key_k of domain k, L x D, drawn from U[0, 1) once -> ``keys``;
Q adaptive network, d x M -> ``domain_classifier``; t temperature -> ``temperature``; f(x) image feature, not normalised
-> ``features``.
    p * (1 + key_k) at a client of domain k                           :meth:`FedAPT.prompts`
    CE(softmax_c(cos(w_c, f(x)) / tau), y) + CE(softmax(Q f(x)), k)   :meth:`FedAPT.losses`
    z = Q f(x); a = softmax((z - mean(z)) / std(z) / t)               :func:`domain_weights`
    p * (1 + sum_k a_k key_k) for an image of any domain              :meth:`FedAPT.forward`
    p and Q <- plain mean over clients                                :class:`.FedAvg`

Deviations:
    * Keys: fedvlp draws them from a seed. Clients of one domain share a key, as in the released code.
    * Domains: The paper trains on all test domains; fedvlp has keys and outputs of Q only for source domains, because
      no client has images of a held-out domain.
    * Prompt length: The released code's default is 24; fedvlp uses L = 16, by which others count the method's cost.
    * Equal scores: The released code divides by 0; fedvlp gives all domains the same weight, as with one domain.
    * Mixtures: fedvlp gives the weights no gradient, which training does not need. With t = 0.01 most weights are
      one-hot, so it encodes each distinct mixture of a batch once.
    * Plain Trainer: Without domains, fedvlp trains under the mean of the keys and pulls Q to the uniform distribution.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder, cosine_logits
from fedvlp.core.protocols import Inputs
from fedvlp.core.strategies import FedAvg
from fedvlp.methods.prompts import PromptLearner, known_domain
from fedvlp.utils.ranges import Names, PositiveFloat, PositiveInt, Seed


class FedAPT(PromptLearner):
    """A prompt for each class, and a classifier that weights the domains' keys for each image.

    Args:
        domains: Source domains, in the order of ``Client.domain``.
        prompt_length: Number of learned vectors L of a class's prompt.
        temperature: Temperature t of the weights over domains, above 0; near 0, they become one-hot.
        key_seed: Seed of the keys, which server and clients draw themselves.
    """

    keys: Tensor  # [M, L, D]
    broadcast_once = ("keys",)
    strategy = FedAvg("uniform")  # each client counts once

    def __init__(
        self,
        class_names: Names,
        domains: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        prompt_length: PositiveInt = 16,
        temperature: PositiveFloat = 0.01,
        key_seed: Seed = 0,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-5),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.temperature = temperature
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length, class_specific=True)
        self.prompt = nn.Parameter(torch.stack([self.text.initial_prompt() for _ in class_names]))  # [C, L, D]
        self.domain_classifier = nn.Linear(self.clip.embed_dim, len(domains), bias=False)
        # A separate generator: server and clients draw the same keys, independently of other draws.
        generator = torch.Generator().manual_seed(key_seed)
        self.register_buffer("keys", torch.rand(len(domains), *self.prompt.shape[1:], generator=generator))

    def prompts(self, weights: Float[Tensor, "*batch M"]) -> Float[Tensor, "*batch C L D"]:
        """Compute all classes' prompts p * (1 + sum_k a_k key_k) under weights a of the domains."""
        keys = torch.einsum("...m,mld->...ld", weights, self.keys)
        return self.prompt * (1 + keys.unsqueeze(-3))

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits of each image under the prompts scaled by its mixture of keys."""
        features = self.precomputed(inputs)["features"]
        # Training knows the domain, so the weights need no gradient.
        with torch.no_grad():
            weights = domain_weights(self.domain_classifier(features), self.temperature)
        return cosine_logits(features, self._texts(weights), self.clip.logit_scale)

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the cross-entropies of classes, under the prompts of the client's domain, and of domains."""
        features = self.precomputed(inputs)["features"]
        # Without a known domain, all domains are equally likely.
        count = len(self.keys)
        domain = torch.full((count,), 1 / count, device=self.keys.device)
        if self.context is not None:
            domain = torch.eye(count, device=self.keys.device)[known_domain(self.context.client, "FedAPT")]  # one-hot
        logits = cosine_logits(features, self.text(self.prompts(domain).flatten(0, 1)), self.clip.logit_scale)
        class_loss = F.cross_entropy(logits, labels)
        domain_loss = F.cross_entropy(self.domain_classifier(features), domain.expand(len(features), -1))
        return {"class_loss": class_loss, "domain_loss": domain_loss, "loss": class_loss + domain_loss}

    def _texts(self, weights: Float[Tensor, "B M"]) -> Float[Tensor, "B C d"]:
        if torch.compiler.is_exporting():  # the number of distinct mixtures depends on values
            return self.text(self.prompts(weights).flatten(1, 2))
        # At a low temperature, most images share a mixture, and encoding prompts is the expensive part.
        mixtures, mixture_of_image = weights.unique(dim=0, return_inverse=True)  # type: ignore[no-untyped-call]
        distinct: Tensor = self.text(self.prompts(mixtures).flatten(1, 2))
        return distinct[mixture_of_image]


def domain_weights(scores: Float[Tensor, "B M"], temperature: float) -> Float[Tensor, "B M"]:
    """Compute a, the softmax over domains of each image's standardised scores z over a temperature t.

    >>> domain_weights(torch.tensor([[3.0, 1.0], [5.0, 5.0]]), 2**0.5)  # standardised: 0.707 and -0.707; 0 and 0
    tensor([[0.7311, 0.2689],
            [0.5000, 0.5000]])
    """
    scores = scores.float()
    centred = scores - scores.mean(dim=1, keepdim=True)
    variance = centred.square().sum(dim=1, keepdim=True) / max(scores.shape[1] - 1, 1)
    # With one domain or equal scores, the standard deviation is 0 and all domains get the same weight.
    deviation = variance.sqrt().clamp_min(torch.finfo(scores.dtype).tiny)
    return (centred / deviation / temperature).softmax(dim=1)
