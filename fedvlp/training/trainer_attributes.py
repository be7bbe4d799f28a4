"""What callbacks, loggers and data modules of Lightning ask of a trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning import Fabric
from lightning.fabric.loggers.logger import Logger

from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import FederatedData
from fedvlp.core.run_state import RunState
from fedvlp.training.fit_options import FitOptions
from fedvlp.training.local_training import LocalTraining


class TrainerAttributes:
    """Attributes of a federation under the names that Lightning's own trainer has for them.

    Attributes:
        fabric: devices, precision and processes.
        options: how the federation trains.
        module: the method that is running.
        data: clients and splits.
        run_state: where the federation stands after the last finished round.
        description: the run's options, which results are compared by.
        folder: the run's folder; None before the first round.
        default_root_dir: folder under which runs get folders of their own.
    """

    fabric: Fabric
    options: FitOptions
    module: FederatedModule
    data: FederatedData
    run_state: RunState
    description: dict[str, Any]
    folder: Path | None
    default_root_dir: Path

    @property
    def lightning_module(self) -> FederatedModule:
        """The method that is running."""
        return self.module

    @property
    def rounds(self) -> int:
        """The number of communication rounds."""
        return self.options.rounds

    @property
    def local(self) -> LocalTraining:
        """How long a client trains in each phase."""
        return self.options.local

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
