"""Text features of `[SOS][prompt][class].[EOT]` for all classes, with the prompt's tokens learned and CLIP frozen.

CoOp-style code encodes C sequences of 77 tokens for every prompt. CLIP's own tower is causal: `[SOS][prompt]` has the
same hidden states for all classes, and nothing behind EOT matters. So the prompt is encoded once, with the classes' own
few tokens behind it in one packed sequence. Features and gradients are those of the 77-token sequences. In towers of
other kinds each class has a sequence of its own.

:class:`DomainTextEncoder` has all pairs of a class and a domain, and :class:`PromptFeatureCache` keeps the features of
prompts that are not trained at present, which change with a round and not with a step.
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
from fedvlp.clip.packing import Layout, encode_side_by_side, make_rows
from fedvlp.clip.zero_shot import ZeroShotClassifier, clean_class_name
from fedvlp.utils.errors import UserError

ClassPosition = Literal["end", "middle", "front"]


class PromptedTextEncoder(nn.Module):
    """The text classifier that a prompt makes: one feature for each class, differentiable in the prompt alone.

    Args:
        clip: The frozen CLIP, shared and not copied.
        class_names: One name for each class; `_` is read as a space.
        prompt_length: L, the number of learned vectors in a prompt.
        class_position: Where the class's name is: behind the prompt, in its middle, or before it (CoOp's three).
        layout: `packed` puts the classes behind one shared prefix, and behind each other's first words where they have
            these in common (for `front` and `middle` it means `cut`); `cut` has a sequence for each class, as long as
            the longest; `plain` has sequences of the full context length. All give the same features. Towers that are
            not causal, or not read at the end of the text, have one layout alone.
        token_budget: Largest number of tokens whose attention is computed together in the packed layout: the prefix
            and a chunk of classes.
        class_specific: Whether each class has a prompt of its own. These stand behind each other, in the order of the
            classes, in what `forward` takes, [*batch, C L, D]. No two sequences begin alike then: `packed` means `cut`.

    Raises:
        UserError: If a class's name does not fit into the context together with the prompt.
    """

    def __init__(
        self,
        clip: CLIP,
        class_names: Sequence[str],
        *,
        prompt_length: int,
        class_position: ClassPosition = "end",
        layout: Layout = "packed",
        token_budget: int = 96,
        class_specific: bool = False,
    ) -> None:
        super().__init__()
        self.clip = clip
        self.class_names = list(map(clean_class_name, class_names))
        self.prompt_length = prompt_length
        self._num_before = {"end": prompt_length, "middle": prompt_length // 2, "front": 0}[class_position]
        sequences = self._sequences()
        self._check_lengths(sequences)
        if class_specific:
            # Class c's prompt is rows c L to (c + 1) L of what `forward` takes.
            sequences = [_shifted(ids, number * prompt_length) for number, ids in enumerate(sequences)]
        if layout == "packed" and (class_position != "end" or class_specific):
            layout = "cut"
        self.rows = make_rows(clip.text, sequences, layout, token_budget)
        self._cache = PromptFeatureCache()

    def forward(
        self, prompt: Float[Tensor, "*batch L D"], deeper: Float[Tensor, "*batch J L D"] | None = None
    ) -> Float[Tensor, "*batch C d"]:
        """Returns the text features w_c of all classes, not normalised, for each prompt of the batch.

        Those of single prompts without a gradient are computed again only when the prompt has changed.

        Args:
            prompt: What goes into the first block.
            deeper: `deeper[j]` takes the prompt's places before block j + 2; None for a prompt in the first block only.

        Raises:
            UserError: If there are more prompts than blocks.
        """
        # Batches of prompts are made for each image, so no later call has the same.
        if prompt.ndim > 2:
            return self._encode(prompt, deeper)
        prompts = (prompt,) if deeper is None else (prompt, deeper)
        return self._cache("", self._encode, *prompts)

    def _encode(
        self, prompt: Tensor, deeper: Tensor | None = None, tokens_at_once: int = 16384
    ) -> Float[Tensor, "*batch C d"]:
        """Returns `forward(prompt, deeper)`, computed now; without a graph in parts, so that it takes little memory."""
        prompts = prompt.reshape(-1, *prompt.shape[-2:])  # [N, L, D]
        needs_grad = prompt.requires_grad or (deeper is not None and deeper.requires_grad)
        # How many parts there are depends on the number of prompts, which an exported graph does not know.
        is_whole = torch.compiler.is_exporting() or (needs_grad and torch.is_grad_enabled())
        size = max(1, tokens_at_once // self.rows.ids.numel())
        parts = (prompts,) if is_whole else torch.split(prompts, size)
        deeper_parts: Sequence[Tensor | None] = [None] * len(parts)
        if deeper is not None:
            deeper = deeper.reshape(prompts.shape[0], *deeper.shape[-3:])  # [N, J, L, D]
            deeper_parts = (deeper,) if is_whole else torch.split(deeper, size)
        tower = self.clip.text
        features = [self.rows.encode(tower, *part) for part in zip(parts, deeper_parts, strict=True)]
        return torch.cat(features).reshape(*prompt.shape[:-2], len(self.class_names), -1)

    def initial_prompt(
        self, words: str | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "L D"]:
        """Returns a prompt to start from: values of N(0, 0.02), or the words' token embeddings followed by such values.

        Args:
            words: Words to begin with, for example "a photo of a".
            generator: Source of the random values.

        Raises:
            UserError: If the words have more tokens than the prompt.
        """
        prompt = torch.randn(self.prompt_length, self.clip.text_width, generator=generator) * 0.02
        if words is not None:
            vectors = self.word_vectors(words)
            # The rest is random, so that its vectors differ from each other.
            prompt[: len(vectors)] = vectors.to(prompt)
        return prompt

    def word_vectors(self, words: str) -> Float[Tensor, "_ D"]:
        """Look up the words' token embeddings; raise a UserError for more tokens than the prompt has vectors."""
        # With the class in front, the prompt follows it.
        (ids,) = self._tokenize([words], is_first=self._num_before > 0)
        if len(ids) > self.prompt_length:
            raise UserError(
                f"A prompt of {self.prompt_length} tokens cannot start from '{words}', which has {len(ids)} tokens. "
                f"Use fewer words or a prompt_length of at least {len(ids)}."
            )
        device = next(self.clip.parameters()).device
        return self.clip.text.embed(torch.tensor(ids, dtype=torch.long, device=device)).detach()

    def _sequences(self) -> list[list[int]]:
        """Each class's token ids, prompt included, through its end-of-text token."""
        layout = self.clip.token_layout
        before = self._num_before
        slots = [-(index + 1) for index in range(self.prompt_length)]
        names = self._tokenize(self.class_names, is_first=before == 0)
        texts = self._tokenize(self.class_names, is_first=before == 0, full_stop=".")
        sequences = []
        for name, words in zip(names, texts, strict=True):
            # The full stop is part of the class's tokens, behind its name or behind the prompt.
            rest = [*words[: len(name)], *slots[before:], *words[len(name) :]]
            sequences.append([*layout.start, *slots[:before], *rest, *layout.end])
        return sequences

    def _tokenize(self, texts: Sequence[str], *, is_first: bool, full_stop: str = "") -> list[list[int]]:
        """Tokenize the first words of sentences, or words that follow others, without start and end tokens."""
        # Gemma's and byte-level tokenizers have two tokens for a word: `dog` at the start of a text, otherwise `▁dog`.
        lead = "" if is_first else "a"
        # Without a name, the full stop is part of the word before it.
        parts = [f"{lead} {text}".strip() + full_stop for text in texts]
        leading, *ids = map(self.clip.token_layout.words, self.clip.tokenize([lead, *parts]))
        return [words[len(leading) :] for words in ids]

    def _check_lengths(self, sequences: list[list[int]]) -> None:
        longest = max(range(len(sequences)), key=lambda index: len(sequences[index]))
        length = len(sequences[longest])
        room = self.clip.token_layout.room
        if length > room:
            most = self.prompt_length - (length - room)
            advice = f"a prompt_length of at most {most} or " if most > 0 else ""
            raise UserError(
                f"A prompt of {self.prompt_length} tokens and the class '{self.class_names[longest]}' make {length} "
                f"tokens, but the text tower reads {room}. Use {advice}a shorter name for this class."
            )


def _shifted(ids: list[int], by: int) -> list[int]:
    """Token ids whose places for a prompt's vectors stand for those `by` further behind."""
    return [token if token >= 0 else token - by for token in ids]


class PromptFeatureCache:
    """Keeps the last results of functions of prompts; none of prompts that get gradients.

    Args:
        capacity: How many results are kept; the oldest is dropped first.
    """

    def __init__(self, capacity: int = 8) -> None:
        self._entries: deque[tuple[Hashable, list[Tensor], Tensor]] = deque(maxlen=capacity)

    def __call__(self, name: Hashable, function: Callable[..., Tensor], *prompts: Tensor) -> Tensor:
        """Compute `function(*prompts)`, or take it from the cache; `name` tells pure functions apart."""
        needs_grad = torch.is_grad_enabled() and any(prompt.requires_grad for prompt in prompts)
        if needs_grad or torch.compiler.is_exporting():  # what is exported has no values yet
            return function(*prompts)
        device = prompts[0].device.type
        # A tensor of inference mode can't be used in a later graph, and autocast changes the numbers.
        mode = (torch.is_inference_mode_enabled(), torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        key = (name, mode, *((prompt.shape, prompt.dtype, prompt.device) for prompt in prompts))
        for cached_key, cached_prompts, result in reversed(self._entries):  # a GPU waits for each comparison
            if cached_key == key and all(map(torch.equal, cached_prompts, prompts)):
                # Equal values, not the same tensor: an optimizer changes prompts in place.
                return result
        result = function(*prompts)
        self._entries.append((key, [prompt.detach().clone() for prompt in prompts], result.detach()))
        return result

    def __deepcopy__(self, memo: Any) -> PromptFeatureCache:
        """Returns an empty cache: a copied module may have another CLIP."""
        return PromptFeatureCache(self._entries.maxlen or 0)


class DomainTextEncoder(nn.Module):
    """Encodes each class's name together with each domain's; the words of both are fixed.

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
        self.each = nn.ModuleList()
        for domain in domains:
            names = [f"{domain} {name}" for name in class_names]
            self.each.append(PromptedTextEncoder(clip, names, prompt_length=prompt_length))
        self._cache = PromptFeatureCache()

    @property
    def handwritten(self) -> Float[Tensor, "C M d"]:
        """Features of "a photo of a <class> with the domain of <domain>.", normalised."""
        features = self.handwritten_pairs.text_features
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
        every = range(self.num_domains)
        chosen = sorted(set(every if learning is None else learning.tolist()))
        others = sorted(set(every) - set(chosen))
        features = dict(zip(chosen, self._encode(chosen, prompts), strict=True))
        # Prompts without gradients are encoded apart, as their features can be taken from the cache.
        features |= zip(others, self._encode(others, prompts.detach()), strict=True)
        return torch.stack([features[domain] for domain in every], dim=1)

    def _encode(self, domains: list[int], prompts: Float[Tensor, "M L D"]) -> Sequence[Float[Tensor, "C d"]]:
        """The features of some domains' class prompts, each domain under its own learned one."""
        if not domains:
            return ()
        rows = [cast(PromptedTextEncoder, self.each[domain]).rows for domain in domains]

        def encode(chosen: Tensor) -> Tensor:
            return torch.stack(encode_side_by_side(self.pairs.clip.text, rows, list(chosen)))

        # Not by a list as index, for which a GPU waits.
        own = torch.stack([prompts[domain] for domain in domains])
        return self._cache(tuple(domains), encode, own).unbind()
