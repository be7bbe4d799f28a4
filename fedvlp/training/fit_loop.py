"""From the first round, or the one after a checkpoint, to the last: what ``Federation.fit`` runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedvlp.core.roles import ROLES
from fedvlp.core.state import RoundMetrics, RunState, ServerState
from fedvlp.runs.client_store import ClientStore, DiskStore
from fedvlp.runs.run_folder import claimed, find_checkpoints, new_run_folder, resume
from fedvlp.training.callback_states import restore, states_of
from fedvlp.training.client import Workspace
from fedvlp.training.dispatch import Hooks
from fedvlp.training.distributed import check_same_run, on_every_process
from fedvlp.training.engine import Engine
from fedvlp.training.evaluation import validation_loss
from fedvlp.training.lightning_hooks import check_monitored
from fedvlp.training.options import ConfiguredRun
from fedvlp.training.round import Run, run_round
from fedvlp.training.task import PhaseSetup, validation_splits

RESUME_MAY_CHANGE = ("rounds", "evaluate_every", "patience", "server", "clients")
"""Options that a resumed run may change, but that are equal on all processes."""


@dataclass(frozen=True)
class FitLoop:
    """Trains one method on one data set, and keeps the run's state and folder up to date.

    Args:
        run: the federation, whose method and data are ready; its ``run_state`` and ``folder`` are set here.
        setups: the phases of a round, with their add-ons.
        hooks: of the callbacks.
        engine: where the clients train.
    """

    run: ConfiguredRun
    setups: Sequence[PhaseSetup]
    hooks: Hooks
    engine: Engine

    def fit(self, parent: Path, checkpoint: Path | None, may_start_anew: bool = False) -> ServerState:
        """Returns the server's last state, which the method then holds.

        Args:
            parent: folder in which a new run gets a folder of its own.
            checkpoint: continue from this checkpoint, or from the newest one in or below this folder.
            may_start_anew: whether it is no mistake if there is no checkpoint.
        """
        with ExitStack() as claims:
            self._start_or_resume(parent, checkpoint, may_start_anew, claims)
            try:
                return self._train()
            except BaseException as error:  # also an interruption, as Lightning's Trainer tells its callbacks
                self.hooks.call("on_exception", exception=error)
                raise

    def _train(self) -> ServerState:
        """Runs the rounds that are left, and returns the server's last state."""
        run = self.run
        rounds = self._make_run(self._open_store())
        self.hooks.call("setup", stage="fit")
        self._restore_callbacks()
        self.hooks.call("on_fit_start")
        self.hooks.call("on_train_start")
        while self.setups and run.run_state.server.round < self.run.rounds and not self._is_stopped():
            self._round(rounds)
        run.current_epoch = run.run_state.server.round
        self._say_who_stopped()
        self.hooks.call("on_train_end")
        self.hooks.call("on_fit_end")
        server = run.run_state.server
        run.module.load_state(server.shared | server.deployed)
        self.hooks.call("teardown", stage="fit")
        return server

    def _restore_callbacks(self) -> None:
        """Lets callbacks go on from what a checkpoint kept of them, and a run that they stopped stay so."""
        self.hooks.asked_to_stop = restore(self.hooks.callbacks, self.run.run_state.callbacks)
        self.run.should_stop = bool(self.hooks.asked_to_stop)

    def _say_who_stopped(self) -> None:
        """Says which callbacks ended the run, if any did."""
        run = self.run
        names = " and ".join(run.run_state.callbacks.stopped_by)
        if names and self._is_stopped():
            run.fabric.print(f"stopped by {names} after round {run.run_state.server.round}; without it the run goes on")

    def _start_or_resume(self, parent: Path, checkpoint: Path | None, may_start_anew: bool, claims: ExitStack) -> None:
        """Sets the run's state and folder: those of a checkpoint, or new ones, claimed for this process."""
        run = self.run
        run.run_state = RunState(ServerState.start(run.module.shared_state()))
        run.folder = None
        if checkpoint is not None:
            resumed = partial(self._resumed, checkpoint, may_start_anew, claims)
            run.run_state, run.folder = on_every_process(run.fabric, resumed) or (run.run_state, None)
        options = {name: getattr(run, name) for name in RESUME_MAY_CHANGE}
        check_same_run(run.fabric, run.data, run.description, run.run_state, options)
        if run.is_global_zero:
            if run.folder is None:
                run.folder = new_run_folder(parent)
                claims.enter_context(claimed(run.folder))
            DiskStore(run.folder).remove_unused(None, ())
        run.folder = run.fabric.broadcast(run.folder)

    def _resumed(self, checkpoint: Path, may_start_anew: bool, claims: ExitStack) -> tuple[RunState, Path] | None:
        """Claims a run, and returns where it stands and its folder; None if there is none."""
        run = self.run
        found = [checkpoint] if checkpoint.is_file() else find_checkpoints(checkpoint)
        if run.is_global_zero and found and found[0].parent.name == "checkpoints":
            claims.enter_context(claimed(found[0].parent.parent))
        return resume(checkpoint, run.module, run.description, run.fabric.print, may_start_anew)

    def _open_store(self) -> ClientStore:
        """Returns the store of what stays on the clients, which now holds the states that the run continues from."""
        store = self.engine.client_store(self.run.folder)
        state = self.run.run_state
        self.run.run_state = replace(
            state,
            personal=store.open(state.personal, "personal"),
            optimizer_states=store.open(state.optimizer_states, "optimizer"),
        )
        return store

    def _make_run(self, store: ClientStore) -> Run:
        """What runs the rounds."""
        clients = self.run.clients
        data = self.run.data
        here = Workspace(
            fabric=self.run.fabric,
            module=self.run.module,
            data=data if clients.attack is None else clients.attack.training_data(data, self.run.module),
            local=self.run.local,
            initial_personal=self.run.module.personal_state(),
            seed=self.run.seed,
            store=store,
            hooks=self.hooks,
            validation=validation_splits(self.run.local.every_add_on, data),
            run_folder=self.run.folder,
        )
        return Run(
            here=here,
            setups=self.setups,
            engine=self.engine,
            rounds=self.run.rounds,
            server=self.run.server,
            clients=clients,
        )

    def _round(self, rounds: Run) -> None:
        """Runs a round, evaluates, and replaces the run's state."""
        run = self.run
        run.current_epoch = run.run_state.server.round
        self.hooks.call("on_train_epoch_start")
        began = time.perf_counter()
        state, metrics = run_round(rounds, run.run_state)
        server = state.server
        metrics["train_seconds"] = time.perf_counter() - began
        # A run ends with a round that was evaluated, also where a callback asked for the end in one that was not.
        is_due = server.round % self.run.evaluate_every == 0 or server.round >= self.run.rounds
        if is_due or run.should_stop:
            self.hooks.call("on_validation_start")
            self.hooks.call("on_validation_epoch_start")
            server = self._decided(server, metrics)
            state = replace(state, server=server)
            metrics |= run.evaluate(run.module, server.deployed, state.personal)
            if run.clients.attack is not None:
                metrics |= run.clients.attack.measure(run, rounds.here.data, server.deployed, state.personal)
        metrics["seconds"] = time.perf_counter() - began
        self.hooks.call("on_round_metrics", row=metrics)
        run.run_state = replace(state, history=(*state.history, metrics))
        self._end_epoch(metrics)
        self.hooks.call("on_round_end", row=metrics)
        if run.is_global_zero:
            rounds.here.store.remove_unused(server.round, (state.personal, state.optimizer_states))

    def _end_epoch(self, metrics: RoundMetrics) -> None:
        """Calls Lightning's hooks at the end of a round, and keeps what callbacks remember and whether one stops it."""
        run = self.run
        if _is_measured(metrics):
            check_monitored(self.hooks.callbacks, metrics)
            self.hooks.call("on_validation_epoch_end")
            self.hooks.call("on_validation_end")
        self.hooks.call("on_train_epoch_end")
        run.should_stop = run.fabric.strategy.reduce_boolean_decision(run.should_stop, all=False)
        asked = self.hooks.asked_to_stop if run.should_stop else []
        run.run_state = replace(run.run_state, callbacks=states_of(self.hooks.callbacks, asked))

    def _decided(self, server: ServerState, metrics: RoundMetrics) -> ServerState:
        """Returns the server's state after strategies have looked at the source validation loss, if any does."""
        strategies = [setup.phase.strategy for setup in self.setups if setup.phase.strategy.uses_validation_loss]
        if not strategies:
            return server
        run = self.run
        loss = validation_loss(run.module, run.data, run.fabric, server.shared) if run.is_global_zero else 0.0
        metrics["validation_loss"] = run.fabric.broadcast(loss)
        for strategy in strategies:
            server = strategy.after_validation(server, metrics["validation_loss"])
        return server

    def _is_stopped(self) -> bool:
        """Whether a callback or ``patience`` ends the run here."""
        history = self.run.run_state.history
        return self._has_plateaued() or (self.run.should_stop and (not history or _is_measured(history[-1])))

    def _has_plateaued(self) -> bool:
        """Whether the mean source validation accuracy has not risen for ``patience`` evaluations."""
        if self.run.patience is None:
            return False
        scores = [metrics["validation"] for metrics in self.run.run_state.history if "validation" in metrics]
        return bool(scores) and len(scores) > scores.index(max(scores)) + self.run.patience


def _is_measured(metrics: RoundMetrics) -> bool:
    """Whether a round was evaluated."""
    return any(role in metrics for role in ROLES)
