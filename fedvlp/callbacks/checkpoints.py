"""Checkpoints to go on from, and the prompts to deploy."""

from __future__ import annotations

import json
from typing import Any

from fedvlp.callbacks.row_texts import RowTexts
from fedvlp.results.selection import best_round
from fedvlp.runs.checkpoint import save_checkpoint, save_prompts
from fedvlp.training.callback import FederationCallback


class Checkpoints(FederationCallback):
    """Writes after each round ``checkpoints/round-<n>.safetensors`` and the deployed ``prompts.safetensors``.

    ``prompts_best.safetensors`` is of the round with the best mean accuracy on the *source* validation splits.

    Args:
        keep: how many checkpoints stay; the older ones are there in case the newest is damaged.
    """

    def __init__(self, keep: int = 2) -> None:
        self.keep = keep
        self.lines = RowTexts(json.dumps)

    def on_round_end(self, federation: Any, row: dict[str, Any]) -> None:
        """Writes the files, the checkpoint last: what it says is done, is done."""
        if not federation.is_global_zero:
            return
        self._write_prompts(federation, "prompts.safetensors")
        if best_round(federation.run_state.history) is row:
            self._write_prompts(federation, "prompts_best.safetensors")
        folder = federation.folder / "checkpoints"
        path = folder / f"round-{row['round']:05d}.safetensors"
        history = "\n".join(self.lines.of(federation.run_state.history))
        save_checkpoint(path, federation.run_state, federation.description, history)
        for old in sorted(folder.glob("round-*.safetensors"))[: -self.keep]:
            old.unlink()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Writes the prompts of a method that trains nothing, too."""
        if trainer.is_global_zero:
            self._write_prompts(trainer, "prompts.safetensors")

    @staticmethod
    def _write_prompts(federation: Any, name: str) -> None:
        """Writes the deployed state, and what stays on the clients where they cannot be tested without it."""
        progress = federation.run_state
        personal = progress.personal if federation.module.personal else {}
        save_prompts(federation.folder / name, progress.server.deployed, personal, federation.description["model"])
