"""What ``fedvlp explain`` shows of PLAN: the first block's text prompt, and image features under the visual prompts."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from fedvlp.methods.plan.deep_prompts import DeepPromptedCLIP, Prompts


@dataclass(frozen=True)
class PLANExplanations:
    """The functions of ``fedvlp.explain.hooks`` that PLAN offers.

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
