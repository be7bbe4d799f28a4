"""What stays on a site between rounds: one file for each phase that it trained, by the library's own store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedvlp.runs.client_store import DiskStore, round_and_phase

ROUNDS_KEPT = 8
"""A server keeps fewer checkpoints to go back to."""


class SiteStore(DiskStore):
    """A :class:`DiskStore` that knows no checkpoints: the server says with each order which file it refers to.

    Args:
        run: the folder of the run at the site.
    """

    def __init__(self, run: Path) -> None:
        super().__init__(run)
        self.referred: set[str] = set()

    def remove_old(self, round: int, referred: Iterable[str]) -> None:
        """Deletes files of rounds long past, but none that the server referred to since the site was started.

        Args:
            round: number of finished rounds.
            referred: names of the files that the running order begins with.
        """
        self.referred.update(referred)
        for path in self.folder.glob("*.safetensors"):
            if path.name not in self.referred and round_and_phase(path)[0] < round - ROUNDS_KEPT:
                path.unlink(missing_ok=True)
