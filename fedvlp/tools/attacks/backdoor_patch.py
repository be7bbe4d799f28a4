"""A backdoor whose trigger is a patch that stays as it is.

Papers: Gu et al., BadNets, 2017, for the patch in a share of the training images.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedvlp.core.module import FederatedModule
from fedvlp.data import FederatedDataModule
from fedvlp.tools.attacks.backdoor import Backdoor
from fedvlp.tools.attacks.trigger import Patch, Trigger


@dataclass(frozen=True)
class BackdoorPatch(Backdoor):
    """Hostile clients put a patch on some of their images and label these as one class.

    Args:
        clients: How many clients are hostile: a number, or a share below 1, rounded down.
        seed: Seed of the choice of hostile clients.
        target: Number of the class that the patch stands for.
        share: Share of a hostile client's images that have the patch, drawn anew in each round, in (0, 1].
        size: Side of the patch, as a share of the image's shorter side, in (0, 1].
        opacity: Share of the patch in its pixels, in (0, 1].
    """

    clients: float = 0.3
    seed: int = 0
    target: int = 0
    share: float = 0.5
    size: float = 0.25
    opacity: float = 1.0

    def __post_init__(self) -> None:
        """Refuses what is no share."""
        super().__post_init__()
        self.check_shares("share", "size", "opacity")

    def trigger(self, data: FederatedDataModule, module: FederatedModule) -> Trigger:
        """Returns the patch."""
        return Patch(self.size, self.opacity)
