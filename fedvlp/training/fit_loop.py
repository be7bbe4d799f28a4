"""The loop of ``Federation.fit``, from the first round or a checkpoint to the last round."""

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from fedvlp.core.protocols import TrainingData
from fedvlp.core.roles import ROLES, selection_column
from fedvlp.core.state import RoundMetrics, RunState, ServerState
from fedvlp.runs.client_store import DiskStore
from fedvlp.runs.descriptions import resume
from fedvlp.runs.run_folder import claimed, find_checkpoints, new_run_folder
from fedvlp.training.callback import RunView
from fedvlp.training.client import Workspace
from fedvlp.training.distributed import check_same_run, on_every_process
from fedvlp.training.evaluation import validation_loss
from fedvlp.training.lightning_hooks import Hooks
from fedvlp.training.round import run_round
from fedvlp.training.task import validation_splits
from fedvlp.utils.memory import reuse_freed_memory


def train_rounds(
    federation: RunView, hooks: Hooks, parent: Path, checkpoint: Path | None, may_start_fresh: bool = False
) -> ServerState:
    """Train all rounds, keep the federation's ``run_state`` and ``folder`` up to date, and return the server's state.

    A new run gets a folder in ``parent``. If ``checkpoint`` is given, the run resumes from this file or from the newest
    checkpoint in this folder. With ``may_start_fresh`` it starts from scratch if there is none.
    """
    with reuse_freed_memory(), ExitStack() as claims:
        start_or_resume(federation, parent, checkpoint, may_start_fresh, claims)
        try:
            workspace = make_workspace(federation, hooks)
            hooks.call("setup", "fit")
            # After `setup`, as in Lightning's Trainer: callbacks may build there the objects that receive their state.
            hooks.restore(federation.run_state.callbacks)
            federation.should_stop = bool(hooks.stopping)
            hooks.call("on_fit_start")
            hooks.call("on_train_start")
            state = federation.run_state
            if state.history and "seconds" not in state.history[-1]:
                # The run stopped while its last round was evaluated at sites.
                end_round(federation, workspace, hooks, state, time.perf_counter())
            rounds = federation.options.rounds if federation.phases else 0
            while federation.run_state.server.round < rounds and not is_stopped(federation):
                train_round(federation, workspace, hooks)
            finish(federation, hooks)
        except BaseException as error:  # including interruptions, as in Lightning's Trainer
            hooks.call("on_exception", error)
            raise
    return federation.run_state.server


def start_or_resume(
    federation: RunView, parent: Path, checkpoint: Path | None, may_start_fresh: bool, claims: ExitStack
) -> None:
    """Set the run's state and folder from a checkpoint, or create new ones. Claim the folder for this process."""
    federation.run_state = RunState(ServerState.start(federation.module.shared_state()))
    federation.folder = None

    def load() -> tuple[RunState, Path | None]:
        if checkpoint is None:
            return federation.run_state, None
        paths = [checkpoint] if checkpoint.is_file() else find_checkpoints(checkpoint)
        # Claimed before reading, because another process may be about to write the next checkpoint.
        if federation.is_global_zero and paths and paths[0].parent.name == "checkpoints":
            claims.enter_context(claimed(paths[0].parent.parent))
        resumed = resume(checkpoint, federation.description, federation.fabric.print, may_start_fresh)
        return resumed or (federation.run_state, None)

    # Every process reads the checkpoint. If one fails, the others must not wait for it.
    federation.run_state, federation.folder = on_every_process(federation.fabric, load)
    changeable = repr([federation.options, federation.evaluate_every])
    check_same_run(federation.fabric, federation.data, federation.description, federation.run_state, changeable)
    if federation.is_global_zero:
        if federation.folder is None:
            federation.folder = new_run_folder(parent)
            claims.enter_context(claimed(federation.folder))
        # An interrupted round may have left client states that no checkpoint refers to.
        DiskStore(federation.folder).remove_unused(None, ())
    federation.folder = federation.fabric.broadcast(federation.folder)


def make_workspace(federation: RunView, hooks: Hooks) -> Workspace:
    """Make the workspace of all rounds, and move the personal tensors of a resumed run into its store."""
    store = federation.engine.client_store(federation.folder)
    state = federation.run_state
    federation.run_state = replace(
        state,
        personal=store.open(state.personal, "personal"),
        optimizer_states=store.open(state.optimizer_states, "optimizer"),
    )
    options = federation.options
    data: TrainingData = federation.data
    module = federation.module
    add_ons = list(options.local.all_add_ons)
    if (attack := options.clients.attack) is not None:
        # Last, because hostile clients replace the update that an honest client would send.
        if (hostile := attack.add_on(data.clients)) is not None:
            add_ons.append(hostile)
        # Hostile clients may train on modified images; evaluation uses the original ones.
        data = attack.training_data(federation.data, module)
    return Workspace(
        options=options,
        fabric=federation.fabric,
        module=module,
        data=data,
        phases=federation.phases,
        add_ons=add_ons,
        initial_personal=module.personal_state(),
        store=store,
        hooks=hooks,
        validation=validation_splits(options.local.all_add_ons, federation.data),
        folder=federation.folder,
        first_round=state.server.round,
    )


def train_round(federation: RunView, workspace: Workspace, hooks: Hooks) -> None:
    """Run and evaluate one round, and update the run's state."""
    federation.current_epoch = federation.run_state.server.round
    hooks.call("on_train_epoch_start")
    # After the callbacks, so that their time is not counted.
    began = time.perf_counter()
    state, metrics = run_round(workspace, federation.engine, federation.run_state)
    metrics["train_seconds"] = time.perf_counter() - began
    end_round(federation, workspace, hooks, replace(state, history=(*state.history, metrics)), began)


def end_round(federation: RunView, workspace: Workspace, hooks: Hooks, state: RunState, began: float) -> None:
    """Evaluate a round, complete its metrics, and update the run's state."""
    options = workspace.options
    metrics = state.history[-1]
    number = state.server.round
    # The last round is always evaluated, even if a callback stops the run between two evaluations.
    is_last = number >= options.rounds or federation.should_stop
    if number % federation.evaluate_every == 0 or is_last:
        hooks.call("on_validation_start")
        hooks.call("on_validation_epoch_start")
        state = replace(state, server=after_validation(federation, workspace, state.server, metrics))
        trained = (state.server.deployed, state.personal)
        federation.following = None if is_last else (workspace, state)
        metrics |= federation.evaluate(workspace.module, *trained)
        federation.following = None
        if options.select != "accuracy":
            by_class = workspace.fabric.broadcast(federation.balance).get("validation", {})
            metrics |= {selection_column(options.select): by_class[options.select]} if by_class else {}
        if options.clients.attack is not None:
            metrics |= options.clients.attack.measure(workspace.module, workspace.data, workspace.fabric, *trained)
    metrics["seconds"] = time.perf_counter() - began
    # Lightning's callbacks read the round's metrics from the history.
    federation.run_state = state
    if is_measured(metrics):
        hooks.call("on_validation_epoch_end")
        hooks.call("on_validation_end")
    hooks.call("on_train_epoch_end")
    # If processes disagreed, they would wait for each other in the next round.
    federation.should_stop = workspace.fabric.strategy.reduce_boolean_decision(federation.should_stop, all=False)
    federation.run_state = replace(federation.run_state, callbacks=hooks.states())
    hooks.call("on_round_end", metrics)
    # After the callbacks, because older checkpoints refer to older files until a callback writes the new one.
    if federation.is_global_zero:
        workspace.store.remove_unused(number, (state.personal, state.optimizer_states))


def after_validation(
    federation: RunView, workspace: Workspace, server: ServerState, metrics: RoundMetrics
) -> ServerState:
    """Pass the source validation loss to the strategies that use it, and return the server's new state."""
    # Before the evaluation, because these strategies choose the tensors to deploy.
    if not any(phase.strategy.uses_validation_loss for phase in workspace.phases):
        return server
    fabric = workspace.fabric
    loss = 0.0
    if fabric.is_global_zero:
        loss = validation_loss(workspace.module, federation.data, fabric, server.shared)
    metrics["validation_loss"] = fabric.broadcast(loss)
    for phase in workspace.phases:
        server = phase.after_validation(server, metrics["validation_loss"])
    return server


def is_stopped(federation: RunView) -> bool:
    """Whether a callback has stopped the run and its last round was evaluated."""
    history = federation.run_state.history
    return federation.should_stop and (not history or is_measured(history[-1]))


def is_measured(metrics: RoundMetrics) -> bool:
    """Whether a round has any accuracy. It may have none if sites do not answer."""
    return any(role in metrics for role in ROLES)


def finish(federation: RunView, hooks: Hooks) -> None:
    """End the run, and load the deployed tensors into the method."""
    server = federation.run_state.server
    federation.current_epoch = server.round
    names = " and ".join(federation.run_state.callbacks.stopped_by)
    if names and is_stopped(federation):
        federation.fabric.print(f"stopped by {names} after round {server.round}; remove it to continue the run")
    hooks.call("on_train_end")
    hooks.call("on_fit_end")
    # The deployed tensors may be averages over rounds; all others keep the value of the last broadcast.
    federation.module.load_state(server.shared | server.deployed)
    hooks.call("teardown", "fit")
