"""A trained method, the images that it is shown, and how it is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import State
from fedvlp.data import FederatedDataModule
from fedvlp.tools.explain.relevance import Method, suited_method
from fedvlp.tools.explain.samples import Samples
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class ExplainContext:
    """A trained method, and what it is shown.

    Attributes:
        module: in evaluation mode, with the deployed tensors.
        deployed: these tensors.
        personal: what each client keeps, by the client's name.
        samples: images to look at one by one; None where only words are wanted.
        data: the run's own images, set up and bound, for t-SNE; None where there are none.
        toward: the class that overlays are of: ``predicted``, ``true``, or a class's name.
        relevance: how overlays are measured; as suits the image tower if None.
        most_points: largest number of images in t-SNE.
        perplexity: of t-SNE; chosen by the number of images if None.
    """

    module: FederatedModule
    deployed: State
    personal: Mapping[str, State]
    samples: Samples | None
    data: FederatedDataModule | None
    toward: str = "predicted"
    relevance: Method | None = None
    most_points: int = 1000
    perplexity: float | None = None

    @property
    def name(self) -> str:
        """The method's name."""
        return type(self.module).__name__

    @property
    def clip(self) -> Any:
        """The frozen CLIP."""
        return self.module.clip

    @property
    def device(self) -> torch.device:
        """The method's device."""
        device: torch.device = next(self.clip.parameters()).device
        return device

    @property
    def method(self) -> Method:
        """How overlays are measured."""
        return self.relevance or suited_method(self.clip)

    @property
    def class_names(self) -> list[str]:
        """All classes."""
        return list(self.module.hparams["class_names"])

    def require_samples(self) -> Samples:
        """Returns the images to look at.

        Raises:
            UserError: If there are none.
        """
        if self.samples is None:
            raise UserError("There are no images to look at. Pass --images, or a run folder with its config.yaml.")
        return self.samples

    def require_one_model(self) -> None:
        """Refuses a method that keeps tensors on its clients.

        Raises:
            UserError: If there is no one model to show.
        """
        if self.module.personal and self.personal:
            raise UserError(f"{self.name} keeps tensors on each client, so there is no one model to look at.")
