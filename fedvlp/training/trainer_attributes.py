"""What callbacks, loggers and data modules of Lightning ask of a trainer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning import Fabric
from lightning.fabric.loggers.logger import Logger
from lightning.pytorch.trainer.states import TrainerFn, TrainerState
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import FederatedData
from fedvlp.core.state import RunState


class TrainerAttributes:
    """Attributes of a federation under the names that Lightning's own trainer has for them.

    Attributes:
        fabric: devices, precision and processes.
        rounds: the number of communication rounds.
        evaluate_every: rounds from one evaluation to the next.
        module: the method that is running.
        data: clients and splits.
        run_state: where the federation stands after the last finished round.
        description: the run's options, which results are compared by.
        folder: the run's folder; None before the first round.
        default_root_dir: folder under which runs get folders of their own.
        should_stop: whether the run is to end after this round, as a callback may ask.
        current_epoch: the round that runs, from 0.
        fast_dev_run: whether everything is only tried once.
        sanity_checking: never; a federation checks nothing before its first round.
        val_check_interval: rounds are evaluated as wholes.
    """

    fabric: Fabric
    rounds: int
    evaluate_every: int
    module: FederatedModule
    data: FederatedData
    run_state: RunState
    description: dict[str, Any]
    folder: Path | None
    default_root_dir: Path
    should_stop: bool = False
    current_epoch: int = 0
    fast_dev_run: bool = False
    sanity_checking = False
    val_check_interval = 1.0

    if not TYPE_CHECKING:  # else every attribute would have a type

        def __getattr__(self, name: str) -> Any:
            """Says of an attribute that only Lightning's own trainer has what there is instead."""
            known = sorted(each for each, value in vars(TrainerAttributes).items() if isinstance(value, property))
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}. Of Lightning's Trainer it has current_epoch, should_stop, "
                f"{', '.join(known)}."
            )

    @property
    def lightning_module(self) -> FederatedModule:
        """The method that is running."""
        return self.module

    @property
    def log_dir(self) -> str:
        """The run's folder."""
        return str(self.folder or self.default_root_dir)

    @property
    def is_global_zero(self) -> bool:
        """Whether this process writes files."""
        return self.fabric.is_global_zero

    @property
    def strategy(self) -> Any:
        """Fabric's strategy."""
        return self.fabric.strategy

    @property
    def loggers(self) -> list[Logger]:
        """The loggers that were given."""
        return self.fabric.loggers

    @property
    def logger(self) -> Logger | None:
        """The first logger; None if there is none."""
        return next(iter(self.loggers), None)

    @property
    def datamodule(self) -> FederatedData:
        """Clients and splits."""
        return self.data

    @property
    def max_epochs(self) -> int:
        """The number of communication rounds."""
        return self.rounds

    @property
    def check_val_every_n_epoch(self) -> int:
        """Rounds from one evaluation to the next."""
        return self.evaluate_every

    @property
    def state(self) -> TrainerState:
        """That it trains: callbacks are asked for nothing else."""
        return TrainerState(fn=TrainerFn.FITTING)

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self.fabric.world_size

    @property
    def global_rank(self) -> int:
        """The number of this process, from 0."""
        return self.fabric.global_rank

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The newest value of each number in the rows of metrics, accuracies in percent, by its column's name."""
        newest: dict[str, Any] = {}
        for row in self.run_state.history:
            newest |= {name: value for name, value in row.items() if isinstance(value, (int, float))}
        return {name: torch.tensor(value) for name, value in newest.items()}

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """The same."""
        return self.callback_metrics
