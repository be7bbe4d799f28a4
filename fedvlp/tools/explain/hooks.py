"""What a method may offer to be explained by; it need not inherit anything, only have the function.

The functions may be the method's own, or those of the object that its ``explain_hooks`` returns.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from fedvlp.clip.towers.image_tower import ImageTower
from fedvlp.core.protocols import Inputs


@runtime_checkable
class HasTextPrompts(Protocol):
    """A method that learns vectors which stand among a text's token embeddings."""

    def text_prompts(self) -> dict[str, Float[Tensor, "L D"]]:
        """Returns each prompt by what a reader calls it."""
        ...


@runtime_checkable
class HasSinglePrompts(Protocol):
    """A method that mixes prompts, each of which could classify alone."""

    def logits_by_prompt(self, inputs: Inputs) -> dict[str, Float[Tensor, "B C"]]:
        """Returns the logits under each prompt alone, by its name, differentiable in the inputs."""
        ...


@runtime_checkable
class RoutesTokens(Protocol):
    """A method that sends each token of an image to one of its text prompts, its experts."""

    def text_prompts(self) -> dict[str, Float[Tensor, "L D"]]:
        """Returns the experts by name, in their order."""
        ...

    def token_experts(self, images: Float[Tensor, "B 3 V V"]) -> Int[Tensor, "B P"] | None:
        """Returns the expert of each token, from 0, or -1 for a dropped one; None where tokens have no experts."""
        ...


@runtime_checkable
class ChangesImageFeatures(Protocol):
    """A method whose image features are not CLIP's own."""

    def image_features(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B d"]:
        """Returns joint image features, not normalised."""
        ...


@runtime_checkable
class HasImageTower(Protocol):
    """A method that looks at images through a tower of its own in place of CLIP's."""

    @property
    def image_tower(self) -> ImageTower:
        """The tower, of the same kind as CLIP's."""
        ...
