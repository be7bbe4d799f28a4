"""Counts of floating-point operations, two for each multiply-add: of reference towers, and the minimum needed.

Only matrix products are counted. Frozen weights get no gradient, so a backward pass has as many operations in linear
layers as the forward pass has, and twice as many in attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedvlp.clip import CLIP, PromptedImageEncoder, clean_class_name


@dataclass(frozen=True)
class Work:
    """Operations of one forward pass.

    Attributes:
        linear: Operations of linear layers.
        attention: Operations between queries and keys, and between weights and values.
    """

    linear: float
    attention: float

    @property
    def forward(self) -> float:
        """Operations of a pass without gradients."""
        return self.linear + self.attention

    @property
    def both(self) -> float:
        """Operations of a forward pass and of the backward pass to the inputs."""
        return 2 * self.linear + 3 * self.attention


@dataclass(frozen=True)
class Tower:
    """A transformer like CLIP's, with perceptrons four times as wide as tokens.

    Attributes:
        width: Width of a token.
        depth: Number of blocks.
        joint: Width of a joint feature.
    """

    width: int
    depth: int
    joint: int

    def work(self, tokens: int, pairs: int, last_tokens: int, last_pairs: int, features: int) -> Work:
        """Count the operations of a pass.

        Args:
            tokens: Tokens in each block but the last, where all of them make keys and values.
            pairs: Pairs of a query and a key in each block but the last.
            last_tokens: Tokens that the last block puts out.
            last_pairs: Pairs of a query and a key in the last block.
            features: Joint features that are read.
        """
        square = self.width**2
        linear = 24 * square * tokens * (self.depth - 1) + 4 * square * tokens + 20 * square * last_tokens
        attention = 4 * self.width * (pairs * (self.depth - 1) + last_pairs)
        return Work(linear + 2 * self.width * self.joint * features, attention)

    def whole(self, sequences: int, length: int) -> Work:
        """Count the operations of whole sequences in all blocks, with attention between all tokens."""
        tokens = sequences * length
        pairs = sequences * length**2
        return self.work(tokens, pairs, tokens, pairs, sequences)


def text_tower(clip: CLIP) -> Tower:
    """Read the sizes of a text tower."""
    return Tower(clip.text_width, clip.text.depth, clip.embed_dim)


def image_tower(clip: CLIP) -> Tower:
    """Read the sizes of a vision transformer."""
    return Tower(clip.image_width, PromptedImageEncoder(clip).depth, clip.embed_dim)


def patches_work(clip: CLIP) -> float:
    """Count the operations that turn an image's patches into tokens; they have no backward pass."""
    return 2 * 3 * clip.image_size**2 * clip.image_width


def packed_text(clip: CLIP, class_names: Sequence[str], prompt_length: int) -> Work:
    """Count the minimum operations for the features of all classes under one prompt.

    The prompt and common first words of classes count once. Tokens attend only to visible tokens, and the last block
    outputs only end-of-text tokens.

    Args:
        clip: The frozen CLIP.
        class_names: The classes.
        prompt_length: Number of learned vectors of the prompt.
    """
    sentences = [f"{clean_class_name(name)}." for name in class_names]
    prompt = [-1] * prompt_length
    texts = [[ids[0], *prompt, *ids[1:]] for ids in clip.tokenize(sentences)]
    # A token is identified by its prefix, so that equal prefixes of two texts count only once.
    prefixes: set[tuple[int, ...]] = set()
    for ids in texts:
        prefixes.update(tuple(ids[:length]) for length in range(1, len(ids) + 1))
    pairs = sum(map(len, prefixes))
    last_pairs = sum(map(len, texts))
    return text_tower(clip).work(len(prefixes), pairs, len(texts), last_pairs, len(texts))


def prompted_image(clip: CLIP, prompt_length: int, read: int) -> Work:
    """Count the minimum operations for one image's features with prompts after its tokens, without patches.

    Args:
        clip: The frozen CLIP.
        prompt_length: Number of learned vectors after the image's tokens.
        read: Tokens that are read behind the last block.
    """
    tokens = int(clip.num_image_tokens or 0) + prompt_length
    return image_tower(clip).work(tokens, tokens**2, read, read * tokens, read)
