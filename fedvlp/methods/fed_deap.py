"""FedDEAP: two prompts for each class, a shared prompt for its meaning and a personal prompt for the client's domain.

Paper: Zheng et al., "FedDEAP: Adaptive Dual-Prompt Tuning for Multi-Domain Federated Learning", ACM MM 2025. The
equations follow its released code, with its alignment repaired.

Symbols: P^g, P^l, C x L x D -> ``global_prompt``, ``local_prompt``; w_c text feature of class c under both; f image
feature; h_s, h_d, "transformation networks" -> ``semantic_network``, ``domain_network``; E_C, E_M -> ``class_frame``,
``domain_frame``; k domain of an image; lambda, sigma -> ``semantic_weight``, ``domain_weight``.
    E = normalised columns of Q (I - 1/n 1 1^T), Q [d, n] orthonormal                    :func:`equiangular_frame`
    [P^g_c, P^l_c] [class c]; L_cls = CE(softmax_c(cos(w_c, f) / tau), y)                :meth:`FedDEAP.forward`
    L_s = CE(softmax_c cos(h_s(f), E_C,c), y); L_d = CE(softmax_m cos(h_d(f), E_M,m), k)
    L_sa = mean_c CE(softmax cos(h_s(w_c), E_C), c); L_da = mean_c CE(softmax cos(h_d(w_c), E_M), k)
    P^g learns by L_cls + lambda L_sa, P^l by L_cls + sigma L_da, h_s by L_s, h_d by L_d :meth:`FedDEAP.losses`
    P^g, h_s, h_d <- plain mean over clients; P^l stays                                  :class:`.FedAvg`

Deviations:
    * Alignment: The released code computes h_s(w) and h_d(w) without a gradient, so L_sa and L_da are constants. In
      fedvlp, they train the prompts, as the abstract requires, and the networks learn only from images.
    * Local prompt: The released code takes two steps with accumulated gradients, so P^l gets the gradient of L_cls
      twice. In fedvlp's single step, P^l gets the gradient of its own loss.
    * Factor: The released code multiplies P^l by the mean image feature of a batch; fedvlp does not, because an image's
      class would depend on its batch.
    * Frames: They come from fixed seeds, so that server and clients agree. E_M has only the source domains.
    * Domain of L_da: The released clients have one domain each; fedvlp uses the shares of the domains in a batch.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder, cosine_logits
from fedvlp.core.protocols import Inputs
from fedvlp.core.strategies import FedAvg
from fedvlp.methods.prompts import PromptLearner, image_domains, initial_prompt
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveInt


class FedDEAP(PromptLearner):
    """For each class, a shared prompt followed by a personal prompt of the client.

    Args:
        domains: Source domains, in the order of ``Client.domain``.
        semantic_weight: Weight lambda of the loss that aligns shared prompts with the classes' directions, at least 0.
        domain_weight: Weight sigma of the loss that aligns personal prompts with the domain's direction, at least 0.
        prompt_length: Number of learned vectors L of a prompt; two prompts precede the class name.
        held_out_evaluation: Classifier for held-out domains: the ``shared`` prompts, or the ``mean`` of the
            probabilities under all clients' prompts.
    """

    personal = ("local_prompt",)
    needs_domains = True
    class_frame: Tensor  # [C, d]
    domain_frame: Tensor  # [M, d]
    strategy = FedAvg("uniform")  # each client counts once

    def __init__(
        self,
        class_names: Names,
        domains: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        semantic_weight: NonNegativeFloat = 1.0,
        domain_weight: NonNegativeFloat = 1.0,
        prompt_length: PositiveInt = 16,
        held_out_evaluation: Literal["shared", "mean"] = "shared",
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.001, momentum=0.9, weight_decay=1e-5),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.semantic_weight = semantic_weight
        self.domain_weight = domain_weight
        self.held_out_evaluation = held_out_evaluation
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=2 * prompt_length, class_specific=True)
        self.shared_text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length, class_specific=True)
        shape = (len(class_names), prompt_length, self.clip.text_width)
        self.global_prompt = nn.Parameter(initial_prompt(shape))
        self.local_prompt = nn.Parameter(initial_prompt(shape))
        width = self.clip.embed_dim
        self.semantic_network = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, width))
        self.domain_network = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, width))
        self.register_buffer("class_frame", equiangular_frame(len(class_names), width, seed=0), persistent=False)
        self.register_buffer("domain_frame", equiangular_frame(len(domains), width, seed=1), persistent=False)

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits under both prompts, or under the shared prompts if there is no client."""
        if self.uses_personal:
            texts = self.text(concatenate_prompts(self.global_prompt, self.local_prompt))
        else:
            texts = self.shared_text(self.global_prompt.flatten(0, 1))
        return cosine_logits(self.precomputed(inputs)["features"], texts, self.clip.logit_scale)

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the losses of the shared prompts, the personal prompts and both networks, and their sum."""
        domains = image_domains(inputs, "FedDEAP")
        features = self.precomputed(inputs)["features"]
        # The same texts twice: each prompt learns from one of them and is a constant in the other.
        train_shared = concatenate_prompts(self.global_prompt, self.local_prompt.detach())
        train_own = concatenate_prompts(self.global_prompt.detach(), self.local_prompt)
        shared, own = self.text(torch.stack([train_shared, train_own]))  # [C, d] each
        classes = torch.arange(len(shared), device=shared.device)
        one_hot = torch.eye(len(self.domain_frame), device=shared.device)[domains]
        shares = one_hot.mean(0).expand(len(own), -1)  # shares of the domains in the batch, for every class
        losses = {
            "cross_entropy": F.cross_entropy(cosine_logits(features, shared, self.clip.logit_scale), labels),
            "own_cross_entropy": F.cross_entropy(cosine_logits(features, own, self.clip.logit_scale), labels),
            "semantic": frame_loss(self.semantic_network(features), self.class_frame, labels),
            "domain": frame_loss(self.domain_network(features), self.domain_frame, domains),
            "semantic_alignment": frame_loss(apply_frozen(self.semantic_network, shared), self.class_frame, classes),
            "domain_alignment": frame_loss(apply_frozen(self.domain_network, own), self.domain_frame, shares),
        }
        shared_loss = losses["cross_entropy"] + self.semantic_weight * losses["semantic_alignment"]
        own_loss = losses["own_cross_entropy"] + self.domain_weight * losses["domain_alignment"]
        return {**losses, "loss": shared_loss + own_loss + losses["semantic"] + losses["domain"]}


def concatenate_prompts(shared: Float[Tensor, "C L D"], own: Float[Tensor, "C L D"]) -> Float[Tensor, "rows D"]:
    """Concatenate each class's two prompts, and then all classes, to [C 2L, D]."""
    return torch.cat([shared, own], dim=1).flatten(0, 1)


def apply_frozen(network: nn.Module, texts: Float[Tensor, "C d"]) -> Float[Tensor, "C d"]:
    """Apply a network to texts without a gradient for its weights, which learn only from images."""
    weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
    return functional_call(network, weights, (texts,))


def frame_loss(mapped: Float[Tensor, "B d"], frame: Float[Tensor, "n d"], target: Tensor) -> Float[Tensor, ""]:
    """Compute the mean cross-entropy of cosines with a frame's directions; targets are indices or shares."""
    return F.cross_entropy(cosine_logits(mapped, frame, 1.0), target)


def equiangular_frame(count: int, width: int, seed: int) -> Float[Tensor, "n d"]:
    """Compute n unit vectors with pairwise inner products of -1 / (n - 1).

    Raises:
        UserError: If there are more vectors than dimensions.
    """
    if count > width:
        raise UserError(f"Expected at most {width} classes or domains, the width of the features; got {count}.")
    generator = torch.Generator().manual_seed(seed)
    orthonormal = torch.linalg.qr(torch.randn(width, count, generator=generator)).Q
    # Subtract the mean. A single vector becomes zero and has no direction.
    return F.normalize(orthonormal - orthonormal.mean(1, keepdim=True), dim=0).T.contiguous()
