"""CLIP with prompts in many blocks of both towers: what PLAN, FedMaPLe and FedPromptSRC classify with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.clip import CLIP, PromptedImageEncoder, PromptedTextEncoder
from fedvlp.ops import cosine_logits
from fedvlp.utils.errors import UserError

Prompts = Mapping[str, Tensor] | nn.ParameterDict
"""`text` [J, L, D] and `visual` [J, L, W]: prompts for the first J blocks of each tower."""


class DeepPromptedCLIP(nn.Module):
    """Classifies with prompts in both towers; has no parameters of its own.

    Args:
        clip: The frozen CLIP, shared and not copied.
        class_names: The classes, in the order of the labels.
        prompt_length: Number of learned vectors in a block's prompt.
        init_words: What the first text prompt is to start from; a shorter prompt takes the place of the first words,
            and the others stay before the class's name.
    """

    def __init__(self, clip: CLIP, class_names: list[str], prompt_length: int, init_words: str | None = None) -> None:
        super().__init__()
        self.clip = clip
        self.prompt_length = prompt_length
        words = (init_words or "").split()
        self.learned_words = " ".join(words[:prompt_length]) or None
        texts = [" ".join([*words[prompt_length:], name]) for name in class_names]
        self.text = PromptedTextEncoder(clip, texts, prompt_length=prompt_length)
        self.visual = PromptedImageEncoder(clip)

    @property
    def depth(self) -> int:
        """The number of blocks that both towers have."""
        return min(self.clip.text.depth, self.visual.depth)

    def check_depth(self, depth: int) -> None:
        """Refuses prompts for more blocks than a tower has.

        Raises:
            UserError: If there are fewer blocks.
        """
        if depth > self.depth:
            raise UserError(f"Expected depth in [1, {self.depth}], the number of blocks, or null; got {depth}.")

    def initial_prompts(self, depth: int | None) -> dict[str, Tensor]:
        """Returns prompts of N(0, 0.02) for the first blocks of each tower; for all blocks if no depth is given.

        Raises:
            UserError: If there are more blocks than a tower has.
        """
        depths = {"text": self.clip.text.depth, "visual": self.visual.depth}
        widths = {"text": self.clip.text_width, "visual": self.clip.image_width}
        self.check_depth(depth or 1)
        prompts = {}
        for kind, blocks in depths.items():
            prompts[kind] = initial_prompt((depth or blocks, self.prompt_length, widths[kind]))
        return prompts

    def initial_text_prompts(self, depth: int | None) -> Float[Tensor, "J L D"]:
        """Returns the words' embeddings for the first block, and prompts of N(0, 0.02) for those behind it.

        Args:
            depth: J; if not given 9, or all blocks of a CLIP with fewer.

        Raises:
            UserError: If there are more blocks than a tower has.
        """
        blocks = min(9, self.depth) if depth is None else depth
        self.check_depth(blocks)
        first = self.text.initial_prompt(self.learned_words)
        return torch.cat([first[None], initial_prompt((blocks - 1, *first.shape))])

    def text_features(self, prompts: Prompts) -> Float[Tensor, "C d"]:
        """Returns w_c, not normalised (PLAN, Eqs. 2, 3)."""
        features: Tensor = self.text(prompts["text"][0], prompts["text"][1:])
        return features

    def logits(self, images: Float[Tensor, "B 3 V V"], prompts: Prompts) -> Float[Tensor, "B C"]:
        """Returns the logits cos(w_c, f) / tau (PLAN, Eqs. 2-6)."""
        text = self.text_features(prompts)
        image = self.visual.encode(images, prompts["visual"])
        return cosine_logits(image, text, self.clip.logit_scale)


def initial_prompt(shape: Sequence[int]) -> Tensor:
    """Returns random values of N(0, 0.02)."""
    return 0.02 * torch.randn(*shape)
