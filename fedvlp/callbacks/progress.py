"""A live bar for each round, and one line when it is over."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from tqdm import tqdm

from fedvlp.core.roles import ROLES
from fedvlp.core.state import Client
from fedvlp.training.callback import FederationCallback
from fedvlp.training.local_training import num_steps


class ProgressBar(FederationCallback):
    """Shows client, loss and the time that is left of the round; then the round's accuracies and that of the run.

    Args:
        enabled: show the live bar; it is also hidden where the output is no terminal.
        seconds: the least time between two looks at the loss, in seconds.
    """

    def __init__(self, enabled: bool = True, seconds: float = 0.2) -> None:
        self.enabled, self.seconds = enabled, seconds
        self.bar: Any = None
        self.shown = 0.0

    def on_round_start(self, federation: Any, phases: Sequence[Any], cohort: Sequence[Client]) -> None:
        """Opens the bar."""
        hidden = not (self.enabled and federation.is_global_zero and sys.stderr.isatty())
        batch_size = getattr(federation.data, "batch_size", 1)
        batches = [-(-client.num_examples // batch_size) for client in cohort]
        steps = sum(num_steps(count, federation.local_epochs, federation.local_steps) for count in batches)
        title = f"round {federation.run_state.server.round + 1}/{federation.rounds}"
        self.bar = tqdm(total=steps * len(phases), desc=title, unit="step", disable=hidden, leave=False)

    def on_client_step(self, federation: Any, client: Client, loss: Tensor) -> None:
        """Moves the bar one step on."""
        self.bar.update()
        now = time.monotonic()
        if not self.bar.disable and now - self.shown > self.seconds:
            self.bar.set_postfix_str(f"{client.name}, loss {loss.item():.3f}")
            self.shown = now

    def on_round_metrics(self, federation: Any, row: dict[str, Any]) -> None:
        """Closes the bar."""
        self.bar.close()

    def on_round_end(self, federation: Any, row: dict[str, Any]) -> None:
        """Prints the round."""
        done = federation.run_state.history
        left = (federation.rounds - row["round"]) * sum(past["seconds"] for past in done) / len(done)
        accuracies = [f"{title} {row[role]:.1f} %" for role, title in ROLES.items() if role in row]
        text = [f"round {row['round']}/{federation.rounds}", *accuracies, f"{row['seconds']:.1f} s, {left:.0f} s left"]
        federation.fabric.print(" · ".join(text), flush=True)
