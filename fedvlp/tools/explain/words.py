"""The words of CLIP's vocabulary that lie nearest to learned prompts (CoOp, Table 4; ADAPT, Table 1).

Distances are Euclidean, between a prompt's vectors and the token embeddings among which they stand.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from torch import Tensor

from fedvlp.clip import CLIP
from fedvlp.results.figures import SMALL_FONT_SIZE, Picture
from fedvlp.utils.text_table import markdown_cell, markdown_table, text_table


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


FONT = "DejaVu Sans Mono"
MAX_PROMPTS = 6
"""How many prompts stand side by side in one table."""

WordFormat = Literal["table", "markdown", "csv"]


def format_words(words: Words, form: WordFormat) -> str:
    """Returns the nearest word of each vector with its distance, a column for each prompt; as CSV all that there are.

    >>> print(format_words({"prompt": [[Word("cat", 7, 0.5)]]}, "markdown"))
    | vector | prompt |
    | ---: | :--- |
    | 1 | `cat` 0.500 |
    """
    if form == "csv":
        return _csv(words)
    names = list(words)
    tables = []
    for start in range(0, len(names), MAX_PROMPTS):
        part = {name: words[name] for name in names[start : start + MAX_PROMPTS]}
        tables.append(_table(part, form))
    return "\n\n".join(tables)


def words_picture(words: Words, method: str, scale: float) -> Picture:
    """Returns the table as a picture.

    Args:
        words: Of a method's prompts.
        method: The method's name.
        scale: The distance within which a typical word has another.
    """
    text = format_words(_drawable(words), "table")
    lines = text.split("\n")
    # In inches: of a letter's width and a line's height in a monospaced font, with a margin.
    width = max(map(len, lines)) * SMALL_FONT_SIZE * 0.0086 + 0.2
    height = len(lines) * SMALL_FONT_SIZE * 0.0175 + 0.2
    figure = Figure(figsize=(width, height), dpi=200)
    figure.text(0.1 / width, 0.5, text.replace("$", r"\$"), family=FONT, fontsize=SMALL_FONT_SIZE, va="center")
    caption = (
        "The word of CLIP's vocabulary nearest to each learned vector, and its Euclidean distance. An ellipsis: only "
        "the beginning of a word; N/A: no text, or none in Latin letters. For scale: half of all words have another "
        f"word within {scale:.3f}; a vector that is much farther than that from every word means none of them."
    )
    alt = "; ".join(f"{name}: {_nearest_words(vectors)}" for name, vectors in words.items())
    return Picture(figure, f"Words nearest to the prompts of {method}", caption, alt)


def _nearest_words(vectors: Sequence[Sequence[Word]]) -> str:
    return ", ".join(near[0].text for near in vectors)


def _drawable(words: Words) -> Words:
    """Returns the words, of which those are N/A that the font has no letters for."""
    drawable: dict[str, list[list[Word]]] = {}
    for name, vectors in words.items():
        drawable[name] = [list(map(_drawable_word, near)) for near in vectors]
    return drawable


def _drawable_word(word: Word) -> Word:
    font = get_font(findfont(FONT))
    if all(font.get_char_index(ord(letter)) for letter in word.text):
        return word
    return replace(word, text="N/A")


def _table(words: Words, form: WordFormat) -> str:
    """Returns a table of a few prompts, which may have different lengths."""
    head = ["vector", *words]
    rows = []
    for index in range(max(map(len, words.values()))):
        row = [str(index + 1)]
        for vectors in words.values():
            row.append(_cell(vectors[index][0], form) if index < len(vectors) else "")
        rows.append(row)
    if form == "table":
        return text_table([head, *rows])
    return markdown_table(list(map(markdown_cell, head)), ["---:", *(":---" for _ in words)], rows)


def _cell(word: Word, form: WordFormat) -> str:
    """Returns a word with its distance; in Markdown as code, so that no sign in it has a meaning."""
    if form == "table":
        return f"{word.text} {word.distance:.3f}"
    fence = "`"
    text = word.text.replace("|", "\\|")
    # A backtick needs longer fences, with spaces between them and the text.
    if "`" in text:
        fence = "``"
        text = f" {text} "
    return f"{fence}{text}{fence} {word.distance:.3f}"


def _csv(words: Words) -> str:
    """Returns a row for each prompt, vector and near word."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["prompt", "vector", "rank", "word", "token", "distance"])
    for name, vectors in words.items():
        for place, near in enumerate(vectors, start=1):
            for rank, word in enumerate(near, start=1):
                writer.writerow([name, place, rank, word.text, word.token, f"{word.distance:.6f}"])
    return file.getvalue().rstrip("\n")
