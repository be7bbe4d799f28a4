"""What ``fedvlp explain`` shows of DiPrompT: the prompts that were kept after training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DiPrompTExplanations:
    """The functions of ``fedvlp.tools.explain.hooks`` that DiPrompT offers.

    Attributes:
        global_prompt: V^G [L, D], if it was not left out.
        query_prompt: V^Q [L, D], if it is deployed.
        domain_prompts: V^D [M, L, D], if they were not left out.
        domains: The source domains, in their order.
    """

    global_prompt: Tensor | None
    query_prompt: Tensor | None
    domain_prompts: Tensor | None
    domains: Sequence[str]

    def text_prompts(self) -> dict[str, Tensor]:
        """Returns the prompts [L, D] by name."""
        found = {}
        if self.global_prompt is not None:
            found["global prompt"] = self.global_prompt
        if self.query_prompt is not None:
            found["query prompt"] = self.query_prompt
        if self.domain_prompts is not None:
            for domain, prompt in zip(self.domains, self.domain_prompts, strict=True):
                found[f"prompt of {domain}"] = prompt
        return found
