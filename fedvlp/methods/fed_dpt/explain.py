"""What ``fedvlp explain`` shows of Fed-DPT and ADAPT: the text prompts by domain, and prompted image features."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from fedvlp.core.protocols import Inputs
from fedvlp.methods._shared.prompt_learner import PromptLearner
from fedvlp.methods.fed_dpt.dual_prompts import DualFeatures, DualPrompts


@dataclass(frozen=True)
class DualPromptExplanations:
    """The functions of ``fedvlp.tools.explain.hooks`` that these methods offer, for the server's prompts.

    Attributes:
        module: The method.
        dual: Its prompts.
    """

    module: PromptLearner
    dual: DualPrompts

    def text_prompts(self) -> dict[str, Tensor]:
        """Returns the text prompts [L, D], by domain where there is one for each."""
        prompts = [] if self.dual.text is None else self.dual.text(None)
        names = [f"prompt of {domain}" for domain in self.dual.domains] if self.dual.mixes else ["prompt"]
        return dict(zip(names, prompts, strict=False))

    def logits_by_prompt(self, inputs: Inputs) -> dict[str, Tensor]:
        """Returns the logits [B, C] under each domain's text prompt alone; nothing where prompts are not mixed."""
        images = self.module.constants(inputs)["images"]
        features: DualFeatures = self.dual(images, None)
        if not self.dual.mixes:
            return {}
        found = {}
        for name, alone in zip(self.text_prompts(), torch.eye(len(features.text), device=images.device), strict=True):
            weights = alone.expand(len(images), -1)
            found[name] = replace(features, weights=weights).logits(self.module.clip.logit_scale)
        return found

    def image_features(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B d"]:
        """Returns f_V, joint image features under the image tokens, not normalised."""
        features: DualFeatures = self.dual(images, None)
        return features.image
