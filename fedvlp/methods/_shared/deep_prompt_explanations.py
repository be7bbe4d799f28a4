"""What ``fedvlp explain`` shows of deep prompts: the first block's text prompt, and image features under the visual."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from fedvlp.methods._shared.deep_prompts import DeepPromptedCLIP, Prompts


@dataclass(frozen=True)
class DeepPromptExplanations:
    """The functions of ``fedvlp.tools.explain.hooks`` that a method with deep prompts offers.

    Attributes:
        prompted: CLIP with prompts in both towers.
        prompts: The global ones.
    """

    prompted: DeepPromptedCLIP
    prompts: Prompts

    def text_prompts(self) -> dict[str, Tensor]:
        """Returns the first block's prompt [L, D] by name; deeper ones do not stand among words."""
        return {"global prompt": self.prompts["text"][0]}

    def image_features(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B d"]:
        """Returns joint image features, not normalised."""
        return self.prompted.visual.encode(images, self.prompts["visual"])
