"""From the first round, or the one after a checkpoint, to the last: what ``Federation.fit`` runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from fedvlp.core.roles import ROLES
from fedvlp.core.state import RoundMetrics, RunState, ServerState
from fedvlp.runs.client_store import DiskStore
from fedvlp.runs.descriptions import resume
from fedvlp.runs.run_folder import claimed, find_checkpoints, new_run_folder
from fedvlp.training.callback import RunView
from fedvlp.training.client import Workspace
from fedvlp.training.distributed import check_same_run, on_every_process
from fedvlp.training.engine import Engine
from fedvlp.training.evaluation import validation_loss
from fedvlp.training.lightning_hooks import Hooks
from fedvlp.training.round import Run, run_round
from fedvlp.training.task import PhaseSetup, validation_splits
from fedvlp.utils.memory import freed_memory_kept


@dataclass(frozen=True)
class FitLoop:
    """Trains one method on one data set, and keeps the run's state and folder up to date.

    Args:
        run: the federation, whose method and data are ready; its ``run_state`` and ``folder`` are set here.
        setups: the phases of a round, with their add-ons.
        hooks: of the callbacks.
        engine: where the clients train.
    """

    run: RunView
    setups: Sequence[PhaseSetup]
    hooks: Hooks
    engine: Engine

    def fit(self, parent: Path, checkpoint: Path | None, may_start_anew: bool = False) -> ServerState:
        """Returns the server's last state, which the method then holds.

        A run is resumed from a checkpoint, or from the newest in or below a folder; a new one gets a folder in
        ``parent``.
        """
        run = self.run
        with freed_memory_kept(), ExitStack() as claims:
            self._start_or_resume(parent, checkpoint, may_start_anew, claims)
            try:
                rounds = self._make_run()
                self.hooks.call("setup", "fit")
                # After `setup`, as Lightning's Trainer does: callbacks may make there what they load into.
                self.hooks.restore(run.run_state.callbacks)
                run.should_stop = bool(self.hooks.stopping)
                self.hooks.call("on_fit_start")
                self.hooks.call("on_train_start")
                while self.setups and run.run_state.server.round < run.options.rounds and not self._is_stopped():
                    self._round(rounds)
                self._finish()
            except BaseException as error:  # also an interruption, as Lightning's Trainer tells its callbacks
                self.hooks.call("on_exception", error)
                raise
        return run.run_state.server

    def _start_or_resume(self, parent: Path, checkpoint: Path | None, may_start_anew: bool, claims: ExitStack) -> None:
        """Sets the run's state and folder: those of a checkpoint, or new ones, claimed for this process."""
        run = self.run
        run.run_state = RunState(ServerState.start(run.module.shared_state()))
        run.folder = None

        def load() -> tuple[RunState, Path | None]:
            if checkpoint is None:
                return run.run_state, None
            paths = [checkpoint] if checkpoint.is_file() else find_checkpoints(checkpoint)
            # Claimed before it is read: another process may be about to write the next checkpoint.
            if run.is_global_zero and paths and paths[0].parent.name == "checkpoints":
                claims.enter_context(claimed(paths[0].parent.parent))
            resumed = resume(checkpoint, run.description, run.fabric.print, may_start_anew)
            return resumed or (run.run_state, None)

        # Every process reads the checkpoint, and one that can't must not leave the others waiting.
        run.run_state, run.folder = on_every_process(run.fabric, load)
        changeable = repr([run.options, run.evaluate_every])
        check_same_run(run.fabric, run.data, run.description, run.run_state, changeable)
        if run.is_global_zero:
            if run.folder is None:
                run.folder = new_run_folder(parent)
                claims.enter_context(claimed(run.folder))
            # An interrupted round may have left states of clients that no checkpoint knows.
            DiskStore(run.folder).remove_unused(None, ())
        run.folder = run.fabric.broadcast(run.folder)

    def _make_run(self) -> Run:
        """What runs the rounds; the store of personal tensors now holds those that the run resumes from."""
        run = self.run
        clients = run.options.clients
        store = self.engine.client_store(run.folder)
        run.run_state = replace(
            run.run_state,
            personal=store.open(run.run_state.personal, "personal"),
            optimizer_states=store.open(run.run_state.optimizer_states, "optimizer"),
        )
        # Hostile clients may train on other images than there are; evaluation uses the real ones.
        here = Workspace(
            fabric=run.fabric,
            module=run.module,
            data=run.data if clients.attack is None else clients.attack.training_data(run.data, run.module),
            local=run.options.local,
            initial_personal=run.module.personal_state(),
            seed=run.options.seed,
            store=store,
            hooks=self.hooks,
            validation=validation_splits(run.options.local.all_add_ons, run.data),
            run_folder=run.folder,
            on_failure=clients.on_failure,
            min_clients=run.options.server.min_clients,
            secure_sum=run.options.server.secure_sum,
        )
        return Run(here, self.setups, self.engine, run.options.rounds, run.options.server, clients)

    def _round(self, rounds: Run) -> None:
        """Runs a round, evaluates, and replaces the run's state."""
        run = self.run
        run.current_epoch = run.run_state.server.round
        self.hooks.call("on_train_epoch_start")
        # Without the time of callbacks that run before it.
        began = time.perf_counter()
        state, metrics = run_round(rounds, run.run_state)
        metrics["train_seconds"] = time.perf_counter() - began
        number = state.server.round
        # A run ends with a round that was evaluated, also where a callback asked for the end in one that was not.
        if number % run.evaluate_every == 0 or number >= run.options.rounds or run.should_stop:
            self.hooks.call("on_validation_start")
            self.hooks.call("on_validation_epoch_start")
            state = replace(state, server=self._after_validation(state.server, metrics))
            metrics |= run.evaluate(run.module, state.server.deployed, state.personal)
            if (attack := run.options.clients.attack) is not None:
                trained = (state.server.deployed, state.personal)
                metrics |= attack.measure(run.module, rounds.here.data, run.fabric, *trained)
        metrics["seconds"] = time.perf_counter() - began
        # Lightning's callbacks read the round's metrics from the history.
        run.run_state = replace(state, history=(*state.history, metrics))
        if _is_measured(metrics):
            self.hooks.call("on_validation_epoch_end")
            self.hooks.call("on_validation_end")
        self.hooks.call("on_train_epoch_end")
        # Processes that disagree would wait for each other in the next round.
        run.should_stop = run.fabric.strategy.reduce_boolean_decision(run.should_stop, all=False)
        run.run_state = replace(run.run_state, callbacks=self.hooks.states())
        self.hooks.call("on_round_end", metrics)
        # After the callbacks, one of which wrote the checkpoint: older ones may refer to older files.
        if run.is_global_zero:
            rounds.here.store.remove_unused(number, (state.personal, state.optimizer_states))

    def _after_validation(self, server: ServerState, metrics: RoundMetrics) -> ServerState:
        """The server's state after strategies have looked at the source validation loss, if any does."""
        # Before the evaluation, which measures what they decide to deploy.
        if not any(setup.phase.strategy.uses_validation_loss for setup in self.setups):
            return server
        run = self.run
        loss = validation_loss(run.module, run.data, run.fabric, server.shared) if run.is_global_zero else 0.0
        metrics["validation_loss"] = run.fabric.broadcast(loss)
        for setup in self.setups:
            server = setup.phase.after_validation(server, metrics["validation_loss"])
        return server

    def _is_stopped(self) -> bool:
        """Whether a callback ends the run here."""
        history = self.run.run_state.history
        return self.run.should_stop and (not history or _is_measured(history[-1]))

    def _finish(self) -> None:
        """Ends the run: the method then holds what is deployed."""
        run = self.run
        server = run.run_state.server
        run.current_epoch = server.round
        names = " and ".join(run.run_state.callbacks.stopped_by)
        if names and self._is_stopped():
            run.fabric.print(f"stopped by {names} after round {server.round}; without it the run continues")
        self.hooks.call("on_train_end")
        self.hooks.call("on_fit_end")
        # What is deployed may be an average over rounds; the rest is as the server last sent it.
        run.module.load_state(server.shared | server.deployed)
        self.hooks.call("teardown", "fit")


def _is_measured(metrics: RoundMetrics) -> bool:
    """Whether there is any accuracy of a round; sites that do not answer may leave none."""
    return any(role in metrics for role in ROLES)
