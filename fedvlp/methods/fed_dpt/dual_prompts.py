"""What Fed-DPT and ADAPT share: a text prompt and an image token for each domain, and text features mixed by domain.

The equations are numbered as in Fed-DPT (Wei et al., "Dual prompt tuning for domain-aware federated learning").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.clip import CLIP, PromptedImageEncoder, PromptedTextEncoder, zero_shot_text_features
from fedvlp.core.phases import Phase
from fedvlp.core.state import State, detached
from fedvlp.core.strategies import ByName, Strategy
from fedvlp.methods.fed_dpt.per_domain_prompts import PerDomainPrompts
from fedvlp.ops import cosine_logits

Components = Literal["domain", "agnostic", "text", "visual"]


@dataclass(frozen=True)
class DualFeatures:
    """What the two towers say of a batch, of as many text prompts and image tokens as there are.

    Attributes:
        image: f_V, joint image features, not normalised.
        text: f_T^k(c), normalised.
        weights: w, the mixture over text prompts.
        scores: <q_cls, k_j> of the image tokens, before temperature and softmax.
        tokens: h_j, joint features of the image tokens' outputs, not normalised.
    """

    image: Float[Tensor, "B d"]
    text: Float[Tensor, "prompts C d"]
    weights: Float[Tensor, "B prompts"]
    scores: Float[Tensor, "B image_tokens"]
    tokens: Float[Tensor, "B image_tokens d"]

    def logits(self, scale: float) -> Float[Tensor, "B C"]:
        """Returns the cosines of f_V with f_T(c) = sum_k w_k f_T^k(c), times `scale` (Eq. 6)."""
        with torch.autocast(self.text.device.type, enabled=False):
            mixed = torch.einsum("bk,kcd->bcd", self.weights.float(), self.text.float())
        return cosine_logits(self.image, mixed, scale)


class DualPrompts(nn.Module):
    """Prompts of both towers and the forward pass through them.

    Args:
        clip: The frozen CLIP, shared and not copied.
        class_names: The classes.
        domains: Names of the source domains.
        prompt_length: Tokens of a text prompt, m.
        components: What there is: `domain` for everything; `agnostic` for one text prompt, not mixed; `text` for one
            text prompt and no image tokens; `visual` for image tokens and the template "a photo of a".
        temperature: tau_d of the weights, above 0.
        text_momentum: alpha of the text prompts; see :class:`.PerDomainPrompts`.
        visual_momentum: The same for the image tokens.
    """

    zero_shot: Tensor

    def __init__(
        self,
        clip: CLIP,
        class_names: list[str],
        domains: list[str],
        prompt_length: int,
        components: Components,
        temperature: float,
        text_momentum: float | None,
        visual_momentum: float | None,
    ) -> None:
        super().__init__()
        self.clip = clip
        self.domains = domains
        self.temperature = temperature
        self.mixes = components == "domain"
        self.text_encoder = PromptedTextEncoder(clip, class_names, prompt_length=prompt_length)
        self.text: PerDomainPrompts | None = None
        self.visual: PerDomainPrompts | None = None
        if components == "visual":
            self.register_buffer("zero_shot", zero_shot_text_features(clip, class_names)[None], persistent=False)
        else:
            count = len(domains) if self.mixes else 1
            prompts = torch.stack([self.text_encoder.initial_prompt() for _ in range(count)])  # [prompts, L, D]
            self.text = PerDomainPrompts(prompts, text_momentum if self.mixes else None)
        if components != "text":
            self.image_encoder = PromptedImageEncoder(clip)
            self.visual = PerDomainPrompts(torch.randn(len(domains), clip.image_width) * 0.02, visual_momentum)

    def forward(self, images: Float[Tensor, "B 3 V V"], domain: int | None) -> DualFeatures:
        """Returns features and weights (Eqs. 3-5) as a client of this domain has them; with None the server's."""
        text = self.text_features(domain)
        if self.visual is None:
            return self._without_image_tokens(images, text)
        prompted = self.image_encoder(images, torch.stack(self.visual(domain))[None])
        scores = prompted.scores.float()
        weights = (scores / self.temperature).softmax(-1) if self.mixes else scores.new_ones(len(images), 1)
        return DualFeatures(prompted.features, text, weights, scores, prompted.prompt_features)

    def text_features(self, domain: int | None) -> Float[Tensor, "prompts C d"]:
        """Returns f_T^k(c), normalised (Eq. 3); prompt by prompt, so that only those with a gradient keep a graph."""
        if self.text is None:
            return self.zero_shot
        features = torch.stack([self.text_encoder(prompt) for prompt in self.text(domain)])
        return F.normalize(features.float(), dim=-1)

    def _without_image_tokens(self, images: Tensor, text: Tensor) -> DualFeatures:
        image = self.clip.encode_image(images)
        nothing = image.new_empty(len(images), 0)
        return DualFeatures(
            image=image,
            text=text,
            weights=image.new_ones(len(images), 1),
            scores=nothing,
            tokens=nothing[:, :, None].expand(-1, -1, image.shape[1]),
        )

    def stacks(self) -> dict[str, PerDomainPrompts]:
        """Returns the prompts that there are, by name."""
        both = {"text": self.text, "visual": self.visual}
        return {name: stack for name, stack in both.items() if stack is not None}

    def phase(self, prefix: str) -> Phase:
        """Returns the one phase of a round; `prefix` is this module's name in its method."""
        names = tuple(f"{prefix}.{name}.shared" for name in self.stacks())
        strategies = [stack.strategy for stack in self.stacks().values()]
        parts: dict[str | tuple[str, ...], Strategy] = dict(zip(names, strategies, strict=True))
        return Phase("prompts", train=names, upload=names, strategy=ByName(parts))

    def copies(self, prefix: str) -> tuple[str, ...]:
        """Returns the names of the copies that a client keeps."""
        return tuple(f"{prefix}.{name}.copies" for name, stack in self.stacks().items() if stack.momentum is not None)

    def start_client(self) -> None:
        """Prepares for a client's local training."""
        for stack in self.stacks().values():
            stack.start_client()

    def follow(self, domain: int | None) -> None:
        """Moves the copies of the other domains' prompts by one step."""
        for stack in self.stacks().values():
            stack.follow(domain)

    def upload(self, prefix: str, domain: int) -> State:
        """Returns what a client of this domain sends."""
        return detached({f"{prefix}.{name}.shared": stack.upload(domain) for name, stack in self.stacks().items()})
