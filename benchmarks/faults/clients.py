"""Parts of a run that misbehave: clients, an aggregator, a callback and a logger.

An environment variable, not an option, selects the fault. So a run with a fault has the same options as a run without
it, and can be resumed and compared.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric.loggers.logger import Logger
from torch import Tensor

from fedvlp import Aggregator, PromptFL, State
from fedvlp.callbacks import FederationCallback
from fedvlp.core.phases import RoundContext
from fedvlp.core.protocols import Batch
from fedvlp.core.state import weighted_mean
from fedvlp.training.callback import RunView

VARIABLE = "FEDVLP_BENCHMARK_FAULTS"
"""A JSON object with the actions in a round, by number of the round (from 1) or ``all``. See ``requested_fault``."""

Change = Callable[[Tensor], Any]

RAISES: dict[str, Callable[[], Exception]] = {
    "raise": lambda: RuntimeError("the sensor is gone"),
    "out_of_memory": lambda: torch.OutOfMemoryError("no memory is left"),
}
UPLOADS: dict[str, Change] = {
    "nan": lambda value: torch.full_like(value, float("nan")),
    "infinity": lambda value: value + float("inf"),
    "float64": lambda value: value.double(),
    "half": lambda value: value.half(),
    "bfloat16": lambda value: value.bfloat16(),
    "int64": lambda value: value.long(),
    "complex": lambda value: value.to(torch.complex64),
    "shape_that_broadcasts": lambda value: value[:1],
    "other_shape": lambda value: torch.zeros(7),
    "transposed": lambda value: value.T,
    "sparse": lambda value: value.to_sparse(),
    "meta": lambda value: value.to("meta"),
    "no_tensor": lambda value: [0.0],
    "huge": lambda value: value * 1e30,
}
"""Replacements for each uploaded tensor."""
STATES: dict[str, Callable[[State], Any]] = {
    "nothing": lambda state: {},
    "none": lambda state: None,
    "list": lambda state: list(state.values()),
    "other_keys": lambda state: {f"other_{name}": value for name, value in state.items()},
    "one_more_key": lambda state: {**state, "more": torch.zeros(1)},
}
"""Replacements for the whole uploaded state."""

WHO = {"": 0, "last": 2, "everyone": -1}
"""Ids of clients."""


def requested_fault(round: int) -> str:
    """Look up the action in a round, counted from 1; empty for none."""
    faults = json.loads(os.environ.get(VARIABLE) or "{}")
    return str(faults.get(str(round), faults.get("all", "")))


class FaultyPromptFL(PromptFL):
    """PromptFL with a faulty first client; with ``last:KIND`` the third client, with ``everyone:KIND`` all clients."""

    _steps = 0
    _tries = 0

    def start_client(self, context: RoundContext) -> None:
        """Start counting the client's steps."""
        super().start_client(context)
        self._steps = 0

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """Compute the loss, or fail in the client's second step."""
        self._steps += 1
        kind = self._kind() if self._steps == 2 else ""
        if kind in RAISES:
            raise RAISES[kind]()
        if kind == "raise_once":
            self._tries += 1
            if self._tries == 1:
                raise RAISES["raise"]()
        if kind == "exit":
            os._exit(9)
        return super().training_step(batch, batch_idx)

    def upload_state(self) -> State:
        """Return the client's update, or a faulty one."""
        state = super().upload_state()
        kind = self._kind() if self._steps else ""  # before training, the names of the tensors are only inspected
        if kind in UPLOADS:
            state = {name: UPLOADS[kind](value.detach()) for name, value in state.items()}
        if kind in STATES:
            state = STATES[kind](state)
        return state

    def _kind(self) -> str:
        if self.context is None:
            return ""
        who, _, kind = requested_fault(self.context.round + 1).rpartition(":")
        client = self.context.client.id
        return kind if who == "everyone" or client == WHO[who] else ""


@dataclass(frozen=True)
class FaultyMean(Aggregator):
    """The weighted mean, which raises if ``server`` is requested."""

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Compute the mean, or raise."""
        if "server" in os.environ.get(VARIABLE, "") and _rounds_of_mean(before):
            raise RuntimeError("the server's code is wrong")
        return weighted_mean(states, weights)


_seen: list[int] = []


def _rounds_of_mean(before: State) -> bool:
    """Check whether this process has combined uploads before, so that one round is finished."""
    _seen.append(len(before))
    return len(_seen) > 1


class Broken(FederationCallback):
    """Callback that raises at the end of a round."""

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Raise an error."""
        raise ZeroDivisionError("a mistake of a callback")


class PartingLogger(Logger):
    """Logger with a service that disappears in the second round."""

    @property
    def name(self) -> str:
        """Name of the logger."""
        return "parting"

    @property
    def version(self) -> int:
        """Version of the logger."""
        return 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Raise from the second step on."""
        if step is not None and step > 1:
            raise ConnectionError("the service does not answer")

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""
