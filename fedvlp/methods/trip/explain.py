"""What ``fedvlp explain`` shows of TRIP: its experts, what each would predict alone, and which tokens it gets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedvlp.clip import PromptedTextEncoder, cosine_logits
from fedvlp.core.protocols import Inputs
from fedvlp.methods.prompts import PromptLearner
from fedvlp.methods.trip.cluster_routers import ExpertMatchingRouter, TokenRouter
from fedvlp.methods.trip.options import Experts
from fedvlp.methods.trip.routers import LearnedRouter, Router


@dataclass(frozen=True)
class TRIPExplanations:
    """The functions of ``fedvlp.tools.explain.hooks`` that TRIP offers.

    Attributes:
        module: The method.
        text: Its text encoder.
        router: Its router.
        expert_features: Gives the experts' place in the joint space.
    """

    module: PromptLearner
    text: PromptedTextEncoder
    router: Router
    expert_features: Experts

    def text_prompts(self) -> dict[str, Tensor]:
        """Returns the experts [L, D] by name."""
        return self.module.text_prompts()

    def logits_by_prompt(self, inputs: Inputs) -> dict[str, Tensor]:
        """Returns the logits [B, C] under each expert alone."""
        features = self.module.constants(inputs)["features"]
        scale = self.module.clip.logit_scale
        return {name: cosine_logits(features, self.text(expert), scale) for name, expert in self.text_prompts().items()}

    @torch.no_grad()
    def token_experts(self, images: Float[Tensor, "B 3 V V"]) -> Int[Tensor, "B P"] | None:
        """Returns the expert of each token in evaluation: the likeliest of a learned router, -1 for a dropped token.

        None where no token has an expert of its own.
        """
        _, tokens = self.module.clip.encode_image_tokens(images)
        if isinstance(self.router, (TokenRouter, ExpertMatchingRouter)):
            return self.router.token_experts(images, tokens, self.expert_features)
        if isinstance(self.router, LearnedRouter) and self.router.options.routing == "learned_token":
            return self.router.probabilities({"tokens": tokens}).argmax(dim=-1)
        return None
