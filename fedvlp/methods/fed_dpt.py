"""Fed-DPT: a text prompt and an image token for each domain; attention to the tokens weights the prompts.

Paper: Wei et al., "Dual prompt tuning for domain-aware federated learning" (Fed-DPT), arXiv 2310.03103.

Symbols: P^k text prompt of domain k -> ``dual.text``; V, the image tokens [v]_1 .. [v]_n -> ``dual.visual``; m ->
``prompt_length``; tau_d -> ``temperature``; alpha -> ``text_momentum``; [P^k] last broadcast -> ``received``; f_V ->
``image``; f_T^k -> ``text``; w -> ``weights``.
    p(c | x) from cos(f_V, f_T(c)) / tau, Eq. 1        :meth:`FedDPT.forward`
    f_T^k(c), f_V, w, Eqs. 3-5                         :meth:`FedDPT.features`
    f_T(c) = sum_k w_k f_T^k(c), Eq. 6                 :class:`DualFeatures`
    L = -cos(f_V, f_T(y)), Eqs. 7, 9                   :meth:`FedDPT.losses`
    P^k <- alpha P^k + (1 - alpha) [P^k], Eq. 8        :class:`PerDomainPrompts`
    server: P^k of its owner, mean of V, Algorithm 1   :class:`.Slots`, ``FedAvg("uniform")``

Deviations:
    * Loss: Eq. 7 of the paper lacks the minus sign; fedvlp follows Eq. 9 of its appendix, which has it.
    * Attention: The paper uses <q_cls, k_j>; fedvlp divides it by the root of a head's width and averages over heads.
      Undivided products over tau_d = 0.1 would make w one-hot.
    * Mixture: Each f_T^k is normalised first, so that a domain's weight does not depend on its feature's length.
    * Held-out domains: The paper tests only seen domains; fedvlp uses the same mixture, which needs no domain label.
    * Unstated values: Clients of one domain are averaged by training images, and batches have 32 images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedvlp.clip import (
    CLIP,
    CLIPSpec,
    PromptedImageEncoder,
    PromptedTextEncoder,
    cosine_logits,
    zero_shot_text_features,
)
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.protocols import Inputs
from fedvlp.core.slots import Slots
from fedvlp.core.state import State, detached
from fedvlp.core.strategies import ByName, FedAvg, Strategy
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.ranges import FractionBelowOne, Names, PositiveFloat, PositiveInt

Components = Literal["domain", "agnostic", "text", "visual"]


class FedDPT(PromptLearner):
    """The domains' text prompts, mixed per image by the class token's attention to the domains' image tokens.

    Args:
        domains: Names of the source domains, in the order of the clients' domains.
        prompt_length: Number of learned vectors m of a text prompt.
        temperature: Temperature tau_d of the weights over domains, above 0.
        text_momentum: Momentum alpha, in [0, 1), of a client's copies of other domains' text prompts, which follow the
            server's prompts. With 0, they are replaced at once. With null, every client trains all text prompts.
        visual_momentum: Momentum of the image tokens; each is then trained only by its own domain. With null, every
            client trains all image tokens, and the server averages them.
        components: Prompts in use. ``domain`` has one text prompt and one image token per domain. ``agnostic`` has one
            unmixed text prompt and the image tokens. ``text`` has only the text prompt. ``visual`` has only the image
            tokens, and classifies with the template "a photo of a".
    """

    needs_images = True
    zero_shot: Tensor  # [1, C, d]

    def __init__(  # noqa: PLR0913  (the paper's options)
        self,
        class_names: Names,
        domains: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        prompt_length: PositiveInt = 16,
        temperature: PositiveFloat = 0.1,
        text_momentum: FractionBelowOne | None = 0.99,
        visual_momentum: FractionBelowOne | None = None,
        components: Components = "domain",
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=5e-4),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.domains = domains
        self.temperature = temperature
        self.mixes = components == "domain"
        self.text_encoder = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length)
        self.stacks: dict[str, PerDomainPrompts] = {}  # ``text``, ``visual`` or both
        if components == "visual":
            self.register_buffer("zero_shot", zero_shot_text_features(self.clip, class_names)[None], persistent=False)
        else:
            count = len(domains) if self.mixes else 1
            prompts = torch.stack([self.text_encoder.initial_prompt() for _ in range(count)])  # [prompts, L, D]
            self.stacks["text"] = PerDomainPrompts(prompts, text_momentum if self.mixes else None)
        if components != "text":
            self.image_encoder = PromptedImageEncoder(self.clip)
            tokens = torch.randn(len(domains), self.clip.image_width) * 0.02
            self.stacks["visual"] = PerDomainPrompts(tokens, visual_momentum)
        self.dual = nn.ModuleDict(self.stacks)
        copied = [name for name, stack in self.stacks.items() if stack.momentum is not None]
        self.train_only_personal = tuple(f"dual.{name}.copies" for name in copied)

    @property
    def domain(self) -> int | None:
        """Domain of the training client; None in evaluation, outside a federation, and with several domains."""
        if self.context is None or self.context.client.domain < 0:
            return None
        return self.context.client.domain

    def configure_phases(self) -> Sequence[Phase]:
        """Describe the only phase: text prompts fill their domains' slots, image tokens are averaged."""
        names = tuple(f"dual.{name}.shared" for name in self.stacks)
        strategy = ByName({f"dual.{name}.shared": stack.strategy for name, stack in self.stacks.items()})
        return (Phase("prompts", train=names, upload=names, strategy=strategy),)

    def start_client(self, context: RoundContext) -> None:
        """Prepare for one client's local training; its copies will follow the broadcast prompts."""
        super().start_client(context)
        for stack in self.stacks.values():
            stack.start_client()

    def upload_state(self) -> State:
        """Upload the client's own text prompt and the image tokens."""
        if self.domain is None:
            # A client without a single domain has trained all prompts and sends them all.
            return super().upload_state()
        return detached({f"dual.{name}.shared": stack.upload(self.domain) for name, stack in self.stacks.items()})

    def features(self, inputs: Inputs) -> DualFeatures:
        """Compute features and weights of a batch (Eqs. 3-5) under the training client's or the server's prompts."""
        images = self.precomputed(inputs)["images"]
        text = self.text_features()
        if "visual" not in self.stacks:
            image = self.clip.encode_image(images)
            no_scores = image.new_empty(len(images), 0)
            no_tokens = no_scores[:, :, None].expand(-1, -1, image.shape[1])  # [B, 0, d]
            return DualFeatures(image, text, image.new_ones(len(images), 1), no_scores, no_tokens)
        prompted = self.image_encoder(images, torch.stack(self.stacks["visual"](self.domain))[None])
        scores = prompted.scores.float()
        weights = (scores / self.temperature).softmax(-1) if self.mixes else scores.new_ones(len(images), 1)
        return DualFeatures(prompted.features, text, weights, scores, prompted.prompt_features)

    def text_features(self) -> Float[Tensor, "prompts C d"]:
        """Compute f_T^k(c), normalised (Eq. 3)."""
        if "text" not in self.stacks:
            return self.zero_shot
        stack = self.stacks["text"]
        # Encode prompts one by one, so that only trained prompts keep a graph and the others come from a cache.
        prompts = stack(self.domain)
        if self.domain is not None and stack.momentum:
            # The copies change in each step; a batched input bypasses the cache.
            features = torch.cat([self.text_encoder(prompt[None]) for prompt in prompts])
        else:
            features = torch.stack([self.text_encoder(prompt) for prompt in prompts])
        return F.normalize(features.float(), dim=-1)

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits cos(f_V, f_T(c)) / tau (Eqs. 1, 6; ADAPT, Eq. 5)."""
        return self.features(inputs).logits(self.clip.logit_scale)

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the negative mean cosine of images and their classes (Eq. 9)."""
        cosines = self(inputs) / self.clip.logit_scale
        return {"loss": -cosines.gather(1, labels[:, None]).mean()}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Move the copies of the other domains' prompts (Eq. 8; ADAPT, Eq. 6)."""
        for stack in self.stacks.values():
            stack.follow(self.domain)


@dataclass(frozen=True)
class DualFeatures:
    """Outputs of the two towers for a batch."""

    image: Float[Tensor, "B d"]  # joint image features f_V, not normalised
    text: Float[Tensor, "prompts C d"]  # text features f_T^k(c), normalised
    weights: Float[Tensor, "B prompts"]  # shares w of text prompts
    scores: Float[Tensor, "B image_tokens"]  # <q_cls, k_j> of image tokens, before temperature and softmax
    tokens: Float[Tensor, "B image_tokens d"]  # joint features h_j of image tokens, not normalised

    def logits(self, scale: float) -> Float[Tensor, "B C"]:
        """Compute the cosines of f_V with f_T(c) = sum_k w_k f_T^k(c), times `scale` (Eq. 6)."""
        # Mix in float32: half precision would round the mixed texts and so move all logits.
        with torch.autocast(self.text.device.type, enabled=False):
            mixed = torch.einsum("bk,kcd->bcd", self.weights.float(), self.text.float())
        return cosine_logits(self.image, mixed, scale)


class PerDomainPrompts(nn.Module):
    """One prompt per domain: a client trains its own, and its copies of the others follow the server's (Eq. 8).

    In each step, a copy keeps a share alpha of its value, in [0, 1). With 0, it takes the received value at once. With
    None, there are no copies: every client trains all prompts, and the server averages them.
    """

    copies: Tensor  # the client's substitutes for other domains' prompts, kept on the client between rounds
    received: Tensor  # the last broadcast

    def __init__(self, start: Float[Tensor, "domains *shape"], momentum: float | None) -> None:
        super().__init__()
        self.momentum = momentum
        self.shared = nn.Parameter(start)  # the server's; local training updates the slot of the client's domain
        if momentum is not None:
            self.register_buffer("copies", start.clone())
            self.register_buffer("received", start.clone(), persistent=False)

    @property
    def strategy(self) -> Strategy:
        """Strategy of the server: each domain's owner fills its slot, or a plain mean."""
        return FedAvg("uniform") if self.momentum is None else Slots(by="domain", slots=len(self.shared))

    @torch.no_grad()
    def start_client(self) -> None:
        """Store the downloaded prompts as the targets of the copies."""
        if self.momentum is None:
            return
        self.received.copy_(self.shared)
        if self.momentum == 0:
            self.copies.copy_(self.received)

    def forward(self, domain: int | None) -> list[Tensor]:
        """List each domain's prompt as seen by a client of this domain; with None, the server's prompts."""
        if domain is None or self.momentum is None:
            return list(self.shared)
        # The own domain has the trained prompt; the others have the client's copies.
        prompts = list(self.copies)
        prompts[domain] = self.shared[domain]
        return prompts

    @torch.no_grad()
    def follow(self, domain: int | None) -> None:
        """Move the copies of other domains' prompts by P <- alpha P + (1 - alpha) [P]received (Eq. 8)."""
        if self.momentum is None:
            return
        # Not in place: the own slot must hold the trained prompt and not a mean.
        followed = torch.lerp(self.received, self.copies, self.momentum)
        own = slice(None) if domain is None else domain
        followed[own] = self.shared[own]
        self.copies.copy_(followed)

    def upload(self, domain: int) -> Tensor:
        """Select the upload of a client of this domain: its own slot, or everything that it trained."""
        return self.shared if self.momentum is None else self.shared[domain]
