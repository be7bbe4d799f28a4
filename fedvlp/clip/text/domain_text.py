"""Text features of all pairs of a class and a domain: under one prompt, under a prompt for each domain, handwritten."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedvlp.clip.backbone import CLIP
from fedvlp.clip.text.packing import encode_side_by_side
from fedvlp.clip.text.prompt_cache import PromptFeatureCache
from fedvlp.clip.text.prompted_text import PromptedTextEncoder
from fedvlp.clip.text.zero_shot import zero_shot_text_features


class DomainTextEncoder(nn.Module):
    """Encodes each class's name together with each domain's; the words of both are fixed.

    Args:
        clip: The frozen CLIP, shared and not copied.
        class_names: One name for each class; `_` and `-` are read as spaces.
        domains: One name for each domain; `_` and `-` are read as spaces.
        prompt_length: L, the number of learned vectors in a prompt.
    """

    def __init__(self, clip: CLIP, class_names: Sequence[str], domains: Sequence[str], *, prompt_length: int) -> None:
        super().__init__()
        self.num_domains = len(domains)
        pairs = [f"{name} with the domain of {domain}" for name, domain in product(class_names, domains)]
        self.pairs = PromptedTextEncoder(clip, pairs, prompt_length=prompt_length)
        self.each = nn.ModuleList()
        for domain in domains:
            names = [f"{domain} {name}" for name in class_names]
            self.each.append(PromptedTextEncoder(clip, names, prompt_length=prompt_length))
        self._cache = PromptFeatureCache()

    @cached_property
    def handwritten(self) -> Float[Tensor, "C M d"]:
        """Features of "a photo of a <class> with the domain of <domain>.", normalised."""
        features = zero_shot_text_features(self.pairs.clip, self.pairs.class_names)
        return features.view(-1, self.num_domains, features.shape[-1])

    def under_one(self, prompt: Float[Tensor, "L D"] | None) -> Float[Tensor, "C M d"]:
        """Returns the features of "[prompt][class] with the domain of [domain].", not normalised; None: handwritten."""
        if prompt is None:
            return self.handwritten
        features: Tensor = self.pairs(prompt)
        return features.view(-1, self.num_domains, features.shape[-1])

    def under_each(
        self, prompts: Float[Tensor, "M L D"], learning: Int[Tensor, "*batch"] | None = None
    ) -> Float[Tensor, "C M d"]:
        """Returns the features of "[prompt m][domain m][class]." for every domain m, not normalised.

        Args:
            prompts: One prompt for each domain.
            learning: Indices of the domains whose prompts get gradients, in any number and order; those of all others
                are exactly zero. None is all.
        """
        # Prompts without a gradient change once a round: their features come from the cache.
        every = range(self.num_domains)
        chosen = sorted(set(every if learning is None else learning.tolist()))
        others = sorted(set(every) - set(chosen))
        features = dict(zip(chosen, self._encode(chosen, prompts), strict=True))
        # Prompts without gradients are encoded apart, as their features can be taken from the cache.
        features |= zip(others, self._encode(others, prompts.detach()), strict=True)
        return torch.stack([features[domain] for domain in every], dim=1)

    def _encode(self, domains: list[int], prompts: Float[Tensor, "M L D"]) -> Sequence[Float[Tensor, "C d"]]:
        """Returns the features of some domains' texts, each domain under its own prompt."""
        if not domains:
            return ()
        rows = [cast(PromptedTextEncoder, self.each[domain]).rows for domain in domains]

        def encode(chosen: Tensor) -> Tensor:
            return torch.stack(encode_side_by_side(self.pairs.clip.text, rows, list(chosen)))

        return self._cache(tuple(domains), encode, prompts[domains]).unbind()
