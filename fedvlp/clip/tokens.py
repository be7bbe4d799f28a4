"""Positions of words, special tokens and padding in a tokenizer's output, found by probing the tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

Tokenizer = Callable[..., Tensor]
"""Map texts to token ids [texts, context], as open_clip's tokenizers do; `context_length` replaces the model's own."""


@dataclass(frozen=True)
class TokenLayout:
    """The tokens of a text: `[start][words][end]`, padding up to the context length, and optionally a last token.

    CLIP's tokenizer starts with its start token and ends with its end-of-text token. T5's tokenizer, which SigLIP uses,
    has no start token. In the first SigLIP and in CLIPA, the end token is also the padding.

    Attributes:
        start: Token ids before the words of each text.
        end: Token ids after the words of each text.
        padding: Token id of the padding.
        last: Token ids after the padding; empty for most models.
        context_length: S, the number of tokens of a padded text.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    padding: int
    last: tuple[int, ...]
    context_length: int

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> TokenLayout:
        """Find the layout from three texts: no words, one word, and more words than the context holds."""
        empty, word = tokenizer(["", "a"]).tolist()
        length = len(empty)
        (full,) = tokenizer(["a " * length]).tolist()
        # Only a text without words is sure to have padding at its second-last position.
        padding = empty[-2]
        last = tuple(empty[-1:]) if empty[-1] != padding else ()
        layout = cls((), (), padding, last, length)
        special = layout.trim(empty)
        with_word = layout.trim(word)
        shared = [first == second for first, second in zip(special, with_word, strict=False)]
        num_start = shared.index(False) if False in shared else len(shared)
        end = tuple(special[num_start:])
        # A text that fills the context has no padding, so this is an end token with the same id.
        if full[-1 - len(last)] == padding:
            end = (*end, padding)
        return cls(tuple(special[:num_start]), end, padding, last, length)

    @property
    def room(self) -> int:
        """The largest number of tokens of a text that is not truncated, including start and end tokens."""
        return self.context_length - len(self.last)

    def trim(self, ids: Sequence[int]) -> list[int]:
        """Remove the padding and the last token of a padded text."""
        end = len(ids) - len(self.last)
        while end > 0 and ids[end - 1] == self.padding:
            end -= 1
        return list(ids[: end + self.end.count(self.padding)])

    def fill(self, ids: Sequence[int]) -> list[int]:
        """Pad a text's token ids, including start and end tokens, to the context length."""
        return [*ids, *[self.padding] * (self.room - len(ids)), *self.last]

    def words(self, ids: Sequence[int]) -> list[int]:
        """Remove the start and end tokens of a trimmed text."""
        return list(ids[len(self.start) : len(ids) - len(self.end)])
