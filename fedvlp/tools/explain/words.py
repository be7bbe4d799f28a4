"""The words of CLIP's vocabulary that lie nearest to learned prompts (CoOp, Table 4; ADAPT, Table 1).

Distances are Euclidean, between a prompt's vectors and the token embeddings among which they stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedvlp.clip import CLIP


@dataclass(frozen=True)
class Word:
    """A token of the vocabulary near a vector.

    Attributes:
        text: the token; with an ellipsis where it is only the beginning of a word, N/A where it is no text.
        token: its index in the vocabulary.
        distance: Euclidean, from the vector.
    """

    text: str
    token: int
    distance: float


Words = Mapping[str, Sequence[Sequence[Word]]]
"""For each prompt by name, and each of its vectors, the nearest words, nearest first."""


@torch.no_grad()
def prompt_words(clip: CLIP, prompts: Mapping[str, Float[Tensor, "L D"]], count: int = 5) -> Words:
    """Returns the words nearest to each vector of each prompt."""
    vocabulary = token_embeddings(clip)
    words: dict[str, list[list[Word]]] = {}
    for name, prompt in prompts.items():
        distances, tokens = nearest(prompt.to(vocabulary), vocabulary, count)
        words[name] = []
        for of_vector, near in zip(distances.tolist(), tokens.tolist(), strict=True):
            words[name].append(_words(clip, near, of_vector))
    return words


def _words(clip: CLIP, tokens: Sequence[int], distances: Sequence[float]) -> list[Word]:
    found = []
    for token, distance in zip(tokens, distances, strict=True):
        found.append(Word(token_text(clip.tokenizer, token), token, distance))
    return found


@torch.no_grad()
def token_embeddings(clip: CLIP) -> Float[Tensor, "vocabulary D"]:
    """Returns CLIP's embeddings of all tokens that there are, in float32."""
    tokens = torch.arange(int(clip.config["text_cfg"].get("vocab_size", 49408)))
    return clip.text.embed(tokens.to(next(clip.parameters()).device)).float()


def nearest(
    vectors: Float[Tensor, "L D"], vocabulary: Float[Tensor, "vocabulary D"], count: int
) -> tuple[Float[Tensor, "L count"], Int[Tensor, "L count"]]:
    """Returns the Euclidean distances and the indices of the nearest rows, nearest first."""
    # By matrix products, which is fast but cancels digits, so in double precision.
    distances = torch.cdist(vectors.double(), vocabulary.double())
    found = distances.topk(count, dim=1, largest=False)
    return found.values.float(), found.indices


def typical_distance(vocabulary: Float[Tensor, "vocabulary D"], sample: int = 256) -> float:
    """Returns the median, over evenly spaced words, of the distance to the nearest other word."""
    chosen = torch.linspace(0, len(vocabulary) - 1, min(sample, len(vocabulary))).long()
    distances, _ = nearest(vocabulary[chosen], vocabulary, 2)  # the nearest is the word itself
    return float(distances[:, 1].median())


def token_text(tokenizer: Any, token: int) -> str:
    """Returns a token as a reader sees it."""
    text = getattr(tokenizer, "tokenizer", tokenizer).decode([token])
    word = text.strip()
    # A token may be a part of a character's bytes, which decodes to the replacement character.
    if not word or "\ufffd" in word:
        return "N/A"
    return word if text.endswith(" ") or word.startswith("<") else f"{word}…"
