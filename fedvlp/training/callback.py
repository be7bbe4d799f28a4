"""The callbacks' view of a run, and the hooks of a federation."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from lightning import Fabric
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn, TrainerState
from torch import Tensor

from fedvlp.core.balance import Balance, class_balance
from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import Phase
from fedvlp.core.predictions import Predictions
from fedvlp.core.protocols import FederatedData
from fedvlp.core.state import Client, ClientUpdate, RunState, ServerState, State
from fedvlp.training.options import RunOptions
from fedvlp.training.task import PhaseTask


class RunView:
    """The callbacks' view of a federation; :class:`fedvlp.Federation` is a subclass.

    Lightning's own callbacks receive it as their ``trainer``, with a round as an epoch. It lacks the other attributes
    of Lightning's Trainer.

    Attributes:
        engine: Trains and evaluates clients: in this program, unless it is replaced before ``fit``.
        phases: The phases of a round, with bound aggregators; empty before ``prepare``.
        run_state: The state after the last finished round.
        options: All options that determine the result.
        description: Method, phases, data and ``options`` as JSON values, used to compare runs.
        folder: The run folder; None outside ``fit``.
        baselines: Names of the untrained baselines that tables show next to the method.
        evaluate_every: Number of rounds between evaluations.
        following: Workspace and state of the next round while a round is evaluated; None during other evaluations.
        should_stop: Whether the run ends after this round. A callback may set it.
        current_epoch: The current round, from 0.
        configs: Names of the configs on the command line, such as ``methods/promptfl``; files by their stem.
    """

    engine: Any  # an Engine, whose module imports this one
    fabric: Fabric
    module: FederatedModule
    data: FederatedData
    phases: Sequence[Phase] = ()
    run_state: RunState
    options: RunOptions
    description: dict[str, Any]
    folder: Path | None
    default_root_dir: Path
    baselines: Sequence[str]
    evaluate_every: int
    following: Any = None  # a tuple of a Workspace, whose module imports this one, and a RunState
    should_stop: bool = False
    current_epoch: int = 0
    fast_dev_run: bool = False
    configs: Sequence[str] = ()
    # Names of Lightning's Trainer, which EarlyStopping, Timer, loggers and data modules read.
    sanity_checking = False
    val_check_interval = 1.0
    state = TrainerState(fn=TrainerFn.FITTING)
    lightning_module = property(attrgetter("module"))
    is_global_zero = property(attrgetter("fabric.is_global_zero"))
    strategy = property(attrgetter("fabric.strategy"))
    world_size = property(attrgetter("fabric.world_size"))
    global_rank = property(attrgetter("fabric.global_rank"))
    loggers = property(attrgetter("fabric.loggers"))
    check_val_every_n_epoch = property(attrgetter("evaluate_every"))
    has_several_labels = property(lambda self: getattr(self.data, "several_labels", False))

    @property
    def log_dir(self) -> str:
        """The run folder; outside ``fit`` the folder of all runs."""
        return str(self.folder or self.default_root_dir)

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The newest value of each column of ``metrics.csv``, accuracies in percent."""
        # Rounds without an evaluation have no accuracies, so callbacks get the accuracies of the last evaluation.
        newest: dict[str, Any] = {}
        for row in self.run_state.history:
            newest |= {name: value for name, value in row.items() if isinstance(value, (int, float))}
        return {name: torch.tensor(value) for name, value in newest.items()}

    @property
    def predictions(self) -> Mapping[str, Predictions]:
        """The predicted class of each image in the last evaluation, by split; empty at sites."""
        return getattr(self.engine, "predictions", {})

    @property
    def balance(self) -> Balance:
        """The scores by class of the last evaluation, without splits of sites that report no counts by class."""
        return class_balance(getattr(self.engine, "class_counts", {}), with_macro_f1=self.options.select == "macro_f1")

    def evaluate(self, module: FederatedModule, deployed: State, personal: Mapping[int, State]) -> dict[str, float]:
        """Compute the accuracies of a state on all splits, in percent. One process computes them for all."""
        measured: dict[str, float] = {}
        if self.is_global_zero:
            measured = self.engine.evaluate(self, module, deployed, personal)
        return self.fabric.broadcast(measured)


class FederationCallback(Callback):
    """Lightning's callback with four more hooks of a federation. Subclasses override the hooks they need.

    ::

        setup, on_fit_start, on_train_start   Lightning's; they take (trainer, pl_module)
        for each round:
            on_train_epoch_start              Lightning's
            on_round_start
            for each phase:
                on_train_batch_end            Lightning's, after each optimizer step of a client
                on_client_problem             a client is skipped, or succeeded on retry
                on_phase_end                  the server has aggregated
            on_validation_start               Lightning's, if the round is evaluated
            on_validation_end                 Lightning's, if the round was evaluated
            on_train_epoch_end                Lightning's; may add to the round's row, ``trainer.run_state.history[-1]``
            on_round_end                      the round is complete: ``federation.run_state`` includes it
        on_train_end, on_fit_end, teardown    Lightning's
        on_exception                          Lightning's, if the run ends by an error or is interrupted
    """

    def on_round_start(self, federation: RunView, phases: Sequence[Phase], cohort: Sequence[Client]) -> None:
        """React to a new round, after its cohort was sampled."""

    def on_client_problem(
        self, federation: RunView, phase: Phase, client: Client, reason: str, is_skipped: bool
    ) -> None:
        """React to a client that failed, dropped out, or sent an update that was rejected.

        ``reason`` is the predicate of a sentence about the client, such as ``uploads NaN or infinity``. A client is
        either skipped for the rest of the round, or succeeded on retry.
        """

    def on_phase_end(
        self, federation: RunView, task: PhaseTask, server: ServerState, updates: Sequence[ClientUpdate]
    ) -> None:
        """React to the aggregation of ``updates``. ``task`` has the state before it and the downloads."""

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """React to the end of a round; ``row`` holds its metrics."""
