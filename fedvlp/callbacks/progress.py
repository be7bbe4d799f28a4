"""A live bar for each round, and one line when it is over."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from tqdm import tqdm

from fedvlp.core.phases import Phase
from fedvlp.core.roles import ROLES
from fedvlp.core.state import Client
from fedvlp.training.callback import FederationCallback, RunView


class ProgressBar(FederationCallback):
    """Shows client, loss and the time that is left of the round; then the round's accuracies and that of the run.

    Args:
        enabled: show the live bar; it is also hidden where the output is no terminal.
        seconds: least time between two updates of the loss, in seconds.
    """

    def __init__(self, enabled: bool = True, seconds: float = 0.2) -> None:
        self.enabled = enabled
        self.seconds = seconds
        self.bar: Any = None
        self.last_update = 0.0

    def on_round_start(self, federation: RunView, phases: Sequence[Phase], cohort: Sequence[Client]) -> None:
        """Opens the bar."""
        hidden = not (self.enabled and federation.is_global_zero and sys.stderr.isatty())
        batch_size = getattr(federation.data, "batch_size", 1)
        steps = sum(federation.local.num_steps(client, batch_size) for client in cohort)
        title = f"round {federation.run_state.server.round + 1}/{federation.rounds}"
        self.bar = tqdm(total=steps * len(phases), desc=title, unit="step", disable=hidden, leave=False)

    def on_client_step(self, federation: RunView, client: Client, loss: Tensor) -> None:
        """Moves the bar one step on."""
        self.bar.update()
        now = time.monotonic()
        # To read a loss waits for the GPU, so it is not read at every step.
        if not self.bar.disable and now - self.last_update > self.seconds:
            self.bar.set_postfix_str(f"{client.name}, loss {loss.item():.3f}")
            self.last_update = now

    def on_round_metrics(self, federation: RunView, row: dict[str, Any]) -> None:
        """Closes the bar."""
        self.bar.close()

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Prints the round."""
        history = federation.run_state.history
        rounds_left = federation.rounds - row["round"]
        seconds_left = rounds_left * sum(past["seconds"] for past in history) / len(history)
        accuracies = [f"{title} {row[role]:.1f} %" for role, title in ROLES.items() if role in row]
        parts = [
            f"round {row['round']}/{federation.rounds}",
            *accuracies,
            f"{row['seconds']:.1f} s, {seconds_left:.0f} s left",
        ]
        federation.fabric.print(" · ".join(parts), flush=True)
