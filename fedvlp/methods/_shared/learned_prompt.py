"""CoOp's prompt: learned vectors around the class's name, and the text encoder that reads them."""

from __future__ import annotations

from torch import nn

from fedvlp.clip import CLIP, PromptedTextEncoder
from fedvlp.clip.text.prompted_text import ClassPosition


def learned_prompt(
    clip: CLIP, class_names: list[str], length: int, words: str | None = None, position: ClassPosition = "end"
) -> tuple[PromptedTextEncoder, nn.Parameter]:
    """Returns the text encoder and a prompt [L, D] to train, of N(0, 0.02) or of words followed by such values.

    Args:
        clip: The frozen CLIP, shared and not copied.
        class_names: The classes, in the order of the labels.
        length: Number of learned vectors L.
        words: Words that the prompt starts from.
        position: Where the class's name stands.

    Raises:
        UserError: If the words or the longest class do not fit.
    """
    text = PromptedTextEncoder(clip, class_names, prompt_length=length, class_position=position)
    return text, nn.Parameter(text.initial_prompt(words))
