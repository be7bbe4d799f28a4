"""Where a federation stands between two rounds: all that a run needs to be continued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedvlp.core.state import ServerState, State

RoundMetrics = dict[str, Any]
"""What was measured in one round, by the names of the columns of ``metrics.csv``."""


@dataclass(frozen=True)
class CallbackStates:
    """What callbacks remember after a round.

    Attributes:
        states: what each remembers, by its key: JSON values and tensors, at any depth.
        stopped_by: the keys of those that asked the run to stop.
    """

    states: Mapping[str, Any] = field(default_factory=dict)
    stopped_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunState:
    """Where a federation stands after a round; nothing else is needed to continue it.

    Attributes:
        server: the server's state; ``server.round`` rounds are finished.
        personal: the tensors that stay on each client, by client id.
        history: the metrics of each finished round.
        optimizer_states: what each client's optimizers continue from, and what a rule of local training kept on it, by
            client id; empty where optimizers start anew in each round and no rule keeps anything.
        callbacks: what callbacks remember.
    """

    server: ServerState
    personal: Mapping[int, State] = field(default_factory=dict)
    history: tuple[RoundMetrics, ...] = ()
    optimizer_states: Mapping[int, State] = field(default_factory=dict)
    callbacks: CallbackStates = field(default_factory=CallbackStates)
