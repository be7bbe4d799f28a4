"""Where words stand among the tokens that a model's tokenizer puts out, asked of the tokenizer itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

Tokenizer = Callable[..., Tensor]
"""Map texts to token ids [texts, context], as open_clip's tokenizers do; `context_length` replaces the model's own."""


@dataclass(frozen=True)
class TokenLayout:
    """The tokens of a text: `[start][words][end]`, then padding up to the context length, and perhaps a last token.

    CLIP's tokenizer starts with its start token and ends with its end-of-text token. T5's tokenizer, which SigLIP uses,
    has no start token. In the first SigLIP and in CLIPA, the end token is also the padding.

    Attributes:
        start: Token ids before the words of each text.
        end: Token ids after the words of each text.
        padding: The token id that fills a text.
        last: Token ids behind the padding; of most models none.
        context_length: S, the number of tokens of a filled text.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    padding: int
    last: tuple[int, ...]
    context_length: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenLayout:
        """Find the layout from three texts: no words, one word, and more words than the context holds."""
        empty, word = tokenizer(["", "a"]).tolist()
        length = len(empty)
        (full,) = tokenizer(["a " * length]).tolist()
        # Only a text without words is sure to have padding in its last but one place.
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
        """The largest number of tokens of a text that is not cut, start and end tokens included."""
        return self.context_length - len(self.last)

    def trim(self, ids: Sequence[int]) -> list[int]:
        """Returns a filled text's token ids from the first start token through the last end token."""
        end = len(ids) - len(self.last)
        while end > 0 and ids[end - 1] == self.padding:
            end -= 1
        return list(ids[: end + self.end.count(self.padding)])

    def fill(self, ids: Sequence[int]) -> list[int]:
        """Returns the token ids of a text, start and end tokens included, filled up to the context length."""
        return [*ids, *[self.padding] * (self.room - len(ids)), *self.last]

    def words(self, ids: Sequence[int]) -> list[int]:
        """Returns a trimmed text's token ids without those of start and end."""
        return list(ids[len(self.start) : len(ids) - len(self.end)])
