"""Text features of `[SOS][prompt][class].[EOT]` for all classes, with the prompt's tokens learned and CLIP frozen.

CoOp-style code encodes C sequences of 77 tokens for every prompt. The tower is causal: `[SOS][prompt]` has the same
hidden states for all classes, and nothing behind EOT matters. So the prompt is encoded once, with the classes' own few
tokens behind it in one packed sequence. Features and gradients are those of the 77-token sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.clip.backbone import CLIP
from fedvlp.clip.text.packing import TokenRows, pack, prompt_ids, stack
from fedvlp.clip.text.prompt_cache import PromptFeatureCache
from fedvlp.clip.text.zero_shot import clean_class_names
from fedvlp.utils.errors import UserError

ClassPosition = Literal["end", "middle", "front"]
Layout = Literal["packed", "cut", "plain"]


class PromptedTextEncoder(nn.Module):
    """The text classifier that a prompt makes: one feature for each class, differentiable in the prompt alone.

    Args:
        clip: The frozen CLIP, shared and not copied.
        class_names: One name for each class; `_` and `-` are read as spaces.
        prompt_length: L, the number of learned vectors in a prompt.
        class_position: Where the class's name stands: behind the prompt, in its middle, or before it (CoOp's three).
        layout: `packed` puts the classes behind one shared prefix, and behind each other's first words where they have
            these in common (for `front` and `middle` it means `cut`); `cut` has a sequence for each class, as long as
            the longest; `plain` has sequences of the full context length. All give the same features.
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
        self.class_names = clean_class_names(class_names)
        self.prompt_length = prompt_length
        sequences = self._sequences(class_position)
        self._check_lengths(sequences)
        if class_specific:
            # Class c's prompt is rows c L to (c + 1) L of what `forward` takes.
            sequences = [_shifted(ids, number * prompt_length) for number, ids in enumerate(sequences)]
            layout = "plain" if layout == "plain" else "cut"
        self.rows = _lay_out(sequences, class_position, layout, token_budget, clip.context_length)
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
        if words is None:
            return prompt
        ids = self.clip.tokenize([words])[0][1:-1]
        if len(ids) > self.prompt_length:
            raise UserError(
                f"A prompt of {self.prompt_length} tokens cannot start from '{words}', which has {len(ids)} tokens. "
                f"Use fewer words or a prompt_length of at least {len(ids)}."
            )
        device = next(self.clip.parameters()).device
        embeddings = self.clip.text.embed(torch.tensor(ids, dtype=torch.long, device=device))
        # The rest stays random, so that its vectors differ from each other.
        prompt[: len(ids)] = embeddings.detach().to(prompt)
        return prompt

    def _sequences(self, class_position: ClassPosition) -> list[list[int]]:
        """Returns each class's token ids, prompt included, through its end-of-text token."""
        texts = self.clip.tokenize([f"{name}." for name in self.class_names])
        name_lengths = [len(ids) - 2 for ids in self.clip.tokenize(self.class_names)]
        slots = prompt_ids(self.prompt_length)
        before = {"end": self.prompt_length, "middle": self.prompt_length // 2, "front": 0}[class_position]
        return [
            [ids[0], *slots[:before], *ids[1 : 1 + length], *slots[before:], *ids[1 + length :]]
            for ids, length in zip(texts, name_lengths, strict=True)
        ]

    def _check_lengths(self, sequences: list[list[int]]) -> None:
        """Refuses a prompt that leaves too little room for a class's name."""
        longest = max(range(len(sequences)), key=lambda index: len(sequences[index]))
        length = len(sequences[longest])
        context = self.clip.context_length
        if length > context:
            raise UserError(
                f"A prompt of {self.prompt_length} tokens and the class '{self.class_names[longest]}' make {length} "
                f"tokens, but the text tower reads {context}. Use a prompt_length of at most "
                f"{self.prompt_length - (length - context)} or a shorter name for this class."
            )


def _shifted(ids: list[int], by: int) -> list[int]:
    """Returns token ids whose places for a prompt's vectors stand for those `by` further behind."""
    return [token if token >= 0 else token - by for token in ids]


def _lay_out(
    sequences: list[list[int]],
    class_position: ClassPosition,
    layout: Layout,
    token_budget: int,
    context_length: int,
) -> TokenRows:
    if layout == "packed" and class_position == "end":
        return pack(sequences, token_budget)
    return stack(sequences, context_length if layout == "plain" else max(map(len, sequences)))
