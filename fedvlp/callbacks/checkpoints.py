"""Checkpoints to resume from, and the prompts to deploy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedvlp.results.rounds import best_round
from fedvlp.runs.checkpoint import save_checkpoint, save_prompts
from fedvlp.training.callback import FederationCallback, RunView


class Checkpoints(FederationCallback):
    """Writes after each round ``checkpoints/round-<n>.safetensors`` and the deployed ``prompts.safetensors``.

    ``prompts_best.safetensors`` is of the round with the best mean accuracy on the *source* validation splits.

    Args:
        keep: how many checkpoints stay; the older ones are there in case the newest is damaged.

    Attributes:
        newest: the checkpoint that was written last; None before the first.
    """

    def __init__(self, keep: int = 2) -> None:
        self.keep = keep
        self.newest: Path | None = None

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Writes the files, the checkpoint last: a run resumes from it, so the others must be there by then."""
        if not federation.is_global_zero:
            return
        _write_prompts(federation, "prompts.safetensors")
        run_state = federation.run_state
        if best_round(run_state.history) is row:
            _write_prompts(federation, "prompts_best.safetensors")
        folder = Path(federation.log_dir) / "checkpoints"
        history = "\n".join(map(json.dumps, run_state.history))
        path = folder / f"round-{row['round']:05d}.safetensors"
        save_checkpoint(path, run_state, federation.description, history)
        self.newest = path
        # Numbers of rounds are padded with zeros, so names sort as rounds do.
        for old in sorted(folder.glob("round-*.safetensors"))[: -self.keep]:
            old.unlink()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Writes the prompts of a method that trains nothing, too."""
        federation: RunView = trainer
        if federation.is_global_zero:
            _write_prompts(federation, "prompts.safetensors")


def _write_prompts(federation: RunView, name: str) -> None:
    """Writes the deployed state, and what stays on the clients where they cannot be tested without it."""
    run_state = federation.run_state
    personal = run_state.personal if federation.module.personal else {}
    path = Path(federation.log_dir) / name
    save_prompts(path, run_state.server.deployed, personal, federation.description["model"])
