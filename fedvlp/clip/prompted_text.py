"""Text features of `[SOS][prompt][class].[EOT]` for all classes, with learned prompt tokens and a frozen CLIP.

CoOp-style code encodes C sequences of 77 tokens for every prompt. CLIP's own tower is causal: `[SOS][prompt]` has the
same hidden states for all classes, and tokens after EOT have no effect. So one packed sequence has the prompt once,
followed by each class's few tokens. Its features and gradients equal the results for 77-token sequences. In other kinds
of towers, each class has its own sequence.

:class:`DomainTextEncoder` encodes all pairs of a class and a domain. :class:`PromptFeatureCache` caches the features of
prompts that are not being trained, which change between rounds but not between steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from itertools import product
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedvlp.clip.backbone import CLIP
from fedvlp.clip.packing import encode_side_by_side, make_rows
from fedvlp.clip.zero_shot import ZeroShotClassifier, clean_class_name
from fedvlp.utils.errors import UserError

ClassPosition = Literal["end", "middle", "front"]


class PromptedTextEncoder(nn.Module):
    """Text classifier made from a prompt: one feature for each class, differentiable only in the prompt.

    Raises UserError if a class's name does not fit into the context together with the prompt.

    Args:
        clip: The frozen CLIP, shared and not copied.
        class_names: One name for each class; `_` is read as a space.
        prompt_length: L, the number of learned vectors in a prompt.
        class_position: Position of the class's name: after the prompt, in its middle, or before it, as in CoOp.
        token_budget: Largest number of tokens in one attention computation of a packed row: the prefix and a chunk of
            classes.
        class_specific: Whether each class has its own prompt. `forward` then expects the prompts concatenated in the
            order of the classes, [*batch, C L, D]. No two sequences share a prefix then, so none are packed.

    >>> from fedvlp.clip import load_clip
    >>> encoder = PromptedTextEncoder(load_clip("fedvlp-tiny"), ["cat", "dog"], prompt_length=4)
    >>> encoder(encoder.initial_prompt()).shape
    torch.Size([2, 128])
    """

    def __init__(
        self,
        clip: CLIP,
        class_names: Sequence[str],
        *,
        prompt_length: int,
        class_position: ClassPosition = "end",
        token_budget: int = 96,
        class_specific: bool = False,
    ) -> None:
        super().__init__()
        self.clip = clip
        self.class_names = list(map(clean_class_name, class_names))
        self.prompt_length = prompt_length
        self._num_before = {"end": prompt_length, "middle": prompt_length // 2, "front": 0}[class_position]
        sequences = self._sequences(class_specific)
        self._check_lengths(sequences)
        packs = class_position == "end" and not class_specific
        self.rows = make_rows(clip.text, sequences, packs, token_budget)
        self._cache = PromptFeatureCache()

    def forward(
        self, prompt: Float[Tensor, "*batch L D"], deeper: Float[Tensor, "*batch J L D"] | None = None
    ) -> Float[Tensor, "*batch C d"]:
        """Compute the text features w_c of all classes, not normalised, for each prompt of the batch.

        The features of a single prompt without a gradient are computed again only after the prompt has changed. Raises
        UserError if there are more prompts than blocks.

        Args:
            prompt: Prompt vectors for the first block.
            deeper: `deeper[j]` replaces the prompt's tokens before block j + 2; None replaces nothing.
        """
        # Batches of prompts are made per image, so they never repeat.
        if prompt.ndim > 2:
            return self._encode(prompt, deeper)
        prompts = (prompt,) if deeper is None else (prompt, deeper)
        return self._cache("", self._encode, *prompts)

    def _encode(
        self, prompt: Tensor, deeper: Tensor | None = None, tokens_at_once: int = 16384
    ) -> Float[Tensor, "*batch C d"]:
        """Compute `forward(prompt, deeper)` without the cache; in parts if no graph is needed, to save memory."""
        prompts = prompt.reshape(-1, *prompt.shape[-2:])  # [N, L, D]
        needs_grad = prompt.requires_grad or (deeper is not None and deeper.requires_grad)
        # The number of parts depends on the number of prompts, which is unknown in an exported graph.
        is_whole = torch.compiler.is_exporting() or (needs_grad and torch.is_grad_enabled())
        size = max(1, tokens_at_once // self.rows.ids.numel())
        parts = (prompts,) if is_whole else torch.split(prompts, size)
        deeper_parts: Sequence[Tensor | None] = [None] * len(parts)
        if deeper is not None:
            deeper = deeper.reshape(prompts.shape[0], *deeper.shape[-3:])  # [N, J, L, D]
            deeper_parts = (deeper,) if is_whole else torch.split(deeper, size)
        features = [self.rows.encode(self.clip.text, *part) for part in zip(parts, deeper_parts, strict=True)]
        return torch.cat(features).reshape(*prompt.shape[:-2], len(self.class_names), -1)

    def initial_prompt(
        self, words: str | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "L D"]:
        """Make an initial prompt: values of N(0, 0.02), or the words' token embeddings followed by such values.

        Raises UserError if the words have more tokens than the prompt.

        Args:
            words: First words of the prompt, for example "a photo of a".
            generator: Generator of the random values.
        """
        prompt = torch.randn(self.prompt_length, self.clip.text_width, generator=generator) * 0.02
        if words is not None:
            vectors = self.word_vectors(words)
            # The other vectors stay random, so that they differ from each other.
            prompt[: len(vectors)] = vectors.to(prompt)
        return prompt

    def word_vectors(self, words: str) -> Float[Tensor, "_ D"]:
        """Look up the words' token embeddings; raise UserError if they have more tokens than the prompt has vectors."""
        # With the class in front, the prompt follows it.
        (ids,) = self._tokenize([words], is_first=self._num_before > 0)
        if len(ids) > self.prompt_length:
            raise UserError(
                f"A prompt of {self.prompt_length} tokens cannot start from '{words}', which has {len(ids)} tokens. "
                f"Use fewer words or a prompt_length of at least {len(ids)}."
            )
        device = next(self.clip.parameters()).device
        return self.clip.text.embed(torch.tensor(ids, dtype=torch.long, device=device)).detach()

    def _sequences(self, class_specific: bool) -> list[list[int]]:
        """Make each class's token ids, including the prompt's slots, through its end-of-text token."""
        layout = self.clip.token_layout
        before = self._num_before
        names = self._tokenize(self.class_names, is_first=before == 0)
        texts = self._tokenize(self.class_names, is_first=before == 0, full_stop=".")
        sequences = []
        for number, (name, words) in enumerate(zip(names, texts, strict=True)):
            # A class's own prompt is rows c L to (c + 1) L of the input of `forward`.
            first = number * self.prompt_length if class_specific else 0
            slots = [-(first + index + 1) for index in range(self.prompt_length)]
            # The full stop belongs to the class's tokens and follows its name or the prompt.
            rest = [*words[: len(name)], *slots[before:], *words[len(name) :]]
            sequences.append([*layout.start, *slots[:before], *rest, *layout.end])
        return sequences

    def _tokenize(self, texts: Sequence[str], *, is_first: bool, full_stop: str = "") -> list[list[int]]:
        """Tokenize the first words of sentences, or words that follow others, without start and end tokens."""
        # Gemma's and byte-level tokenizers encode a word as `dog` at the start of a text, otherwise as `▁dog`.
        lead = "" if is_first else "a"
        # If there is no name, the full stop joins the word before it.
        parts = [f"{lead} {text}".strip() + full_stop for text in texts]
        leading, *ids = map(self.clip.token_layout.words, self.clip.tokenize([lead, *parts]))
        return [words[len(leading) :] for words in ids]

    def _check_lengths(self, sequences: list[list[int]]) -> None:
        longest = max(range(len(sequences)), key=lambda index: len(sequences[index]))
        length = len(sequences[longest])
        room = self.clip.token_layout.room
        if length > room:
            max_length = self.prompt_length - (length - room)
            advice = f"a prompt_length of at most {max_length} or " if max_length > 0 else ""
            raise UserError(
                f"A prompt of {self.prompt_length} tokens and the class '{self.class_names[longest]}' make {length} "
                f"tokens, but the text tower reads {room}. Use {advice}a shorter name for this class."
            )


class PromptFeatureCache:
    """Cache of the last results of functions of prompts, except for prompts that get gradients.

    Args:
        capacity: Number of results in the cache; the oldest is dropped first.
    """

    def __init__(self, capacity: int = 8) -> None:
        self._entries: deque[tuple[Hashable, list[Tensor], Tensor]] = deque(maxlen=capacity)

    def __call__(self, name: Hashable, function: Callable[..., Tensor], *prompts: Tensor) -> Tensor:
        """Compute `function(*prompts)`, or take it from the cache; `name` tells pure functions apart."""
        needs_grad = torch.is_grad_enabled() and any(prompt.requires_grad for prompt in prompts)
        if needs_grad or torch.compiler.is_exporting():  # tensors have no values during export
            return function(*prompts)
        device = prompts[0].device.type
        # Tensors of inference mode can't be used in a later graph, and autocast changes the values.
        mode = (torch.is_inference_mode_enabled(), torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        key = (name, mode, *((prompt.shape, prompt.dtype, prompt.device) for prompt in prompts))
        for cached_key, cached_prompts, result in reversed(self._entries):  # a GPU waits for each comparison
            if cached_key == key and all(map(torch.equal, cached_prompts, prompts)):
                # Values are compared rather than identities, since an optimizer changes prompts in place.
                return result
        result = function(*prompts)
        self._entries.append((key, [prompt.detach().clone() for prompt in prompts], result.detach()))
        return result

    def __deepcopy__(self, memo: Any) -> PromptFeatureCache:
        """Make an empty cache, since a copied module may have another CLIP."""
        return PromptFeatureCache(self._entries.maxlen or 0)


class DomainTextEncoder(nn.Module):
    """Text encoder for all pairs of a class and a domain, with the fixed words of both names.

    Args:
        clip: The frozen CLIP, shared and not copied.
        class_names: One name for each class; `_` is read as a space.
        domains: One name for each domain; `_` is read as a space.
        prompt_length: L, the number of learned vectors in a prompt.
    """

    def __init__(self, clip: CLIP, class_names: Sequence[str], domains: Sequence[str], *, prompt_length: int) -> None:
        super().__init__()
        self.num_domains = len(domains)
        pairs = [f"{name} with the domain of {domain}" for name, domain in product(class_names, domains)]
        self.pairs = PromptedTextEncoder(clip, pairs, prompt_length=prompt_length)
        self.handwritten_pairs = ZeroShotClassifier(clip, pairs)
        self.domain_encoders = nn.ModuleList()
        for domain in domains:
            names = [f"{domain} {name}" for name in class_names]
            self.domain_encoders.append(PromptedTextEncoder(clip, names, prompt_length=prompt_length))
        self._cache = PromptFeatureCache()

    @property
    def handwritten(self) -> Float[Tensor, "C M d"]:
        """Features of "a photo of a <class> with the domain of <domain>.", normalised."""
        features = self.handwritten_pairs.text_features
        return features.view(-1, self.num_domains, features.shape[-1])

    def encode_with_prompt(self, prompt: Float[Tensor, "L D"] | None) -> Float[Tensor, "C M d"]:
        """Encode "[prompt][class] with the domain of [domain].", not normalised; None gives `handwritten`."""
        if prompt is None:
            return self.handwritten
        features: Tensor = self.pairs(prompt)
        return features.view(-1, self.num_domains, features.shape[-1])

    def encode_with_domain_prompts(
        self, prompts: Float[Tensor, "M L D"], learning: Int[Tensor, "*batch"] | None = None
    ) -> Float[Tensor, "C M d"]:
        """Encode "[prompt m][domain m][class]." for every domain m, not normalised.

        Args:
            prompts: One prompt for each domain.
            learning: Indices of the domains with gradients for their prompts, in any number and order. All other
                gradients are exactly zero. None selects all domains.
        """
        domains = range(self.num_domains)
        chosen = sorted(set(domains if learning is None else learning.tolist()))
        others = sorted(set(domains) - set(chosen))
        features = dict(zip(chosen, self._encode(chosen, prompts), strict=True))
        # Prompts without gradients are encoded separately, so that their features can come from the cache.
        features |= zip(others, self._encode(others, prompts.detach()), strict=True)
        return torch.stack([features[domain] for domain in domains], dim=1)

    def _encode(self, domains: list[int], prompts: Float[Tensor, "M L D"]) -> Sequence[Float[Tensor, "C d"]]:
        if not domains:
            return ()
        rows = [cast(PromptedTextEncoder, self.domain_encoders[domain]).rows for domain in domains]

        def encode(chosen: Tensor) -> Tensor:
            return torch.stack(encode_side_by_side(self.pairs.clip.text, rows, list(chosen)))

        # Indexing with a list would make a GPU wait.
        chosen_prompts = torch.stack([prompts[domain] for domain in domains])
        return self._cache(tuple(domains), encode, chosen_prompts).unbind()
