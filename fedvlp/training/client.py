"""The life of one client in one phase, and what is done about a client that fails."""

import errno
import math
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from lightning import Fabric
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.protocols import Batch, EvaluationSplit, Inputs, Loader, TrainingData
from fedvlp.core.state import (
    ADD_ON,
    Client,
    ClientUpdate,
    State,
    add_prefix,
    detached,
    is_finite,
    strip_prefix,
    upload_error,
)
from fedvlp.runs.client_store import ClientStore
from fedvlp.training.add_ons.base import AddOn, LocalContext
from fedvlp.training.evaluation import accuracy_now
from fedvlp.training.local_training import make_optimizer, optimizer_state, reset_gradient_scale
from fedvlp.training.options import RunOptions
from fedvlp.training.task import ClientResult, PhaseTask, of_method
from fedvlp.utils.errors import MachineError, UserError, is_out_of_memory
from fedvlp.utils.files import write_text
from fedvlp.utils.seeding import derive_seed, restored_generators, seed_generators

# Folder of the run in which tracebacks of clients that failed are.
FAILURES = "failures"

# Retrying elsewhere does not mend these, and skipping clients for them would skip every client.
DISK_FAULTS = {errno.ENOSPC, errno.EROFS, errno.EIO, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


class ClientError(Exception):
    """Raised when a client's result cannot be turned into an update."""


@dataclass(frozen=True)
class Workspace:
    """State shared by all rounds of a run: options, data, devices, and the one module into which tensors are loaded.

    Args:
        options: Of training; with round, phase and client their seed fixes every random draw.
        phases: Of a round, with their aggregators.
        initial_personal: Personal tensors of the module before the first round.
        validation: If an add-on measures clients, the splits of all their domains.
        folder: Gets the tracebacks of clients that fail; None to keep none.
        first_round: The round, counted from 0, with which this process began.
        optimizers: Of the running phase, by its index in the round, if the next client can use them, too.
        errors: Exceptions of clients in the running phase, by the client's id.
    """

    options: RunOptions
    fabric: Fabric
    module: FederatedModule
    data: TrainingData
    phases: Sequence[Phase]
    add_ons: Sequence[AddOn]
    initial_personal: State
    store: ClientStore
    hooks: Any  # fedvlp.training.lightning_hooks.Hooks
    validation: Sequence[EvaluationSplit] = ()
    folder: Path | None = None
    first_round: int = 0
    optimizers: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)


def train_client(client: Client, task: PhaseTask, workspace: Workspace) -> ClientResult:
    """Train one client for one phase."""
    module = workspace.module
    download = task.download(client)
    module.load_state(of_method(download))
    # After the download, since a first personal state may be made from it.
    module.load_state(personal_state(client, task, workspace))
    module.start_client(RoundContext(task.round, task.phase, client))
    batches, steps = local_batches(client, task, workspace)

    optimizer = prepare_optimizer(client, task, workspace)
    # Before the generators are seeded: what add-ons draw must not change what the method draws.
    add_ons = begin_add_ons(client, task, workspace, download, optimizer, steps)
    # From here every draw follows from seed, round, phase and client, whoever trained before.
    seed_generators(task.seeds[client.id])
    if optimizer is not None:
        if not module.training:  # looked at first, since to set it walks through all of CLIP
            module.train()
        for index, batch in enumerate(batches):
            inputs, labels = workspace.fabric.to_device(batch)
            with workspace.fabric.autocast():
                loss = check_loss(module, module.training_step((inputs, labels), index))
            workspace.fabric.backward(loss)
            # By passes of their own: gradients add up in place, and the method's graph is freed before.
            add_ons.backward(inputs)
            optimizer.step()
            optimizer.zero_grad()
            module.on_train_batch_end(loss.detach(), (inputs, labels), index)
            outputs = {"loss": loss.detach(), "client": client}
            workspace.hooks.call("on_train_batch_end", outputs, (inputs, labels), index)
    elif task.phase.one_pass:
        with torch.no_grad():
            for index, batch in enumerate(batches):
                module.training_step(workspace.fabric.to_device(batch), index)

    upload, kept = add_ons.finish(checked_upload(module), task.index)
    update = ClientUpdate(client, upload, client.num_examples, module.logged_means())
    personal = module.personal_state()
    if optimizer is not None and not workspace.options.local.reset_optimizer:
        kept |= add_prefix(optimizer_state(optimizer.optimizer, module.communicable_state()), str(task.index))
    # Phases share one entry: those that did not run keep theirs.
    kept = task.kept(client) | kept
    # Kept now and not once it is accepted: with files only one client's tensors are in memory.
    stored = workspace.store.keep(task.round, client.id, personal, kept)
    return ClientResult(update, *stored, is_finite(personal, kept))


def personal_state(client: Client, task: PhaseTask, workspace: Workspace) -> State:
    """A client's personal tensors: of its last round, or those to start with."""
    if client.id in task.state.personal:
        return task.state.personal[client.id]
    if not workspace.initial_personal:
        return {}
    # The round does not enter the seed, so a client's first tensors are the same whenever it joins.
    seed_generators(derive_seed(workspace.options.seed, client.id))
    return workspace.module.initial_personal_state(workspace.initial_personal)


def local_batches(client: Client, task: PhaseTask, workspace: Workspace) -> tuple[Iterator[Batch], int]:
    """A client's batches in a phase, and how many they are; a straggler gets fewer."""

    def loader_of(shuffle: int) -> Loader:
        """The client's batches in the order of a shuffle's number; the round's own has the client's seed."""
        seed = task.seeds[client.id]
        # A fraction of an epoch goes through passes of several rounds; each pass has one order in all of them.
        if shuffle != task.round:
            seed = derive_seed(workspace.options.seed, shuffle, task.index, client.id)
        return workspace.data.train_dataloader(client, seed=seed)

    if task.phase.one_pass:
        loader = loader_of(task.round)
        batches, steps = iter(loader), len(loader)
    else:
        batches, steps = workspace.options.local.batches(loader_of, task.round)
    if client.id in task.shares_of_steps:
        # Rounded up, so that each straggler takes a step.
        steps = math.ceil(task.shares_of_steps[client.id] * steps)
        batches = islice(batches, steps)
    return batches, steps


def prepare_optimizer(client: Client, task: PhaseTask, workspace: Workspace) -> Any:
    """The optimizer of the client in the module, as Fabric steps it; None if nothing is trainable."""
    module = workspace.module
    reset_gradient_scale(workspace.fabric)
    if task.index in workspace.optimizers:
        optimizer = workspace.optimizers[task.index]
        optimizer.optimizer.state.clear()
        return optimizer
    continued = {} if workspace.options.local.reset_optimizer else strip_prefix(task.kept(client), str(task.index))
    optimizer = make_optimizer(workspace.fabric, module, task.learning_rate_factor, continued)
    # To make one for each client takes a third of the loop's own time. PyTorch's own remember nothing outside of their
    # state, so without it they are exactly fresh ones; one that the method configures may depend on the client.
    is_default = type(module).configure_optimizers is FederatedModule.configure_optimizers
    is_pytorchs = optimizer is not None and type(optimizer.optimizer).__module__.startswith("torch.optim.")
    if is_default and is_pytorchs and workspace.options.local.reset_optimizer:
        workspace.optimizers[task.index] = optimizer
    return optimizer


def check_loss(module: FederatedModule, loss: object) -> Tensor:
    """The loss of a step, if it is one."""
    if not isinstance(loss, Tensor):
        raise UserError(f"{type(module).__name__}.training_step must return the loss, a tensor; got {loss!r}.")
    return loss


def checked_upload(module: FederatedModule) -> State:
    """Copy what the client in the module sends; raise ClientError if that is something else than tensors."""
    upload = module.upload_state()
    # Looked at here, where a client is to blame, and again by the server, which trusts no site.
    if problem := upload_error(upload):
        raise ClientError(problem)
    # Copies, since the next client trains in the same tensors.
    return detached(upload)


class AddOnsAtWork(list[tuple[AddOn, LocalContext]]):
    """The add-ons in one client's training, each with what it sees of the client; often none."""

    def backward(self, inputs: Inputs) -> None:
        """Add the gradients of what add-ons add to the loss, then let add-ons see and change those of the step."""
        for add_on, local in self:
            with local.fabric.autocast():
                added = add_on.loss(local, inputs)
            if added is not None:
                local.fabric.backward(added)
        for add_on, local in self:
            add_on.after_backward(local)

    def finish(self, upload: State, phase_index: int) -> tuple[State, State]:
        """What the client sends, for the method and for add-ons, and what they keep on it."""
        all_sent: State = {}
        all_kept: State = {}
        for place, (add_on, local) in enumerate(self):
            upload, sent, kept = add_on.finish(local, upload)
            all_sent |= add_prefix(detached(sent), f"{ADD_ON}/{place}")
            all_kept |= add_prefix(detached(kept), f"{ADD_ON}/{phase_index}/{place}")
        return upload | all_sent, all_kept


def begin_add_ons(
    client: Client, task: PhaseTask, workspace: Workspace, download: State, optimizer: Any, steps: int
) -> AddOnsAtWork:
    """Begin the add-ons of the phase, once the client's tensors are in the module."""
    at_work = AddOnsAtWork()
    if not task.add_ons:
        return at_work
    # A client measures itself only on images of its own domain.
    splits = [split for split in workspace.validation if client in split.clients]
    trained = workspace.module.trainable_by_name()
    start = {name: value.detach().clone() for name, value in trained.items()}
    for place, add_on in enumerate(task.add_ons):
        local = LocalContext(
            client=client,
            module=workspace.module,
            fabric=workspace.fabric,
            optimizer=optimizer,
            names=task.names,
            trained=trained,
            start=start,
            downloaded=of_method(download),
            received=workspace.fabric.to_device(strip_prefix(download, f"{ADD_ON}/{place}")),
            kept=workspace.fabric.to_device(strip_prefix(task.kept(client), f"{ADD_ON}/{task.index}/{place}")),
            steps=steps,
            proximal_weight=sum(each.proximal_weight for each in task.add_ons),
            seed=task.seeds[client.id],
            accuracy=partial(accuracy_now, workspace.module, workspace.fabric, splits),
        )
        add_on.begin(local)
        at_work.append((add_on, local))
    return at_work


def train_clients(clients: Sequence[Client], task: PhaseTask, workspace: Workspace) -> list[ClientResult]:
    """The results of clients, trained sequentially in the one module."""
    workspace.optimizers.clear()  # learning rates are those of the round
    with restored_generators(), workspace.module.frozen_tensor_set():
        results = [try_client(client, task, workspace) for client in clients]
    # Without a context what is logged goes to Lightning, as outside of a federation.
    workspace.module.context = None
    workspace.store.flush()
    return results


def try_client(client: Client, task: PhaseTask, workspace: Workspace) -> ClientResult:
    """The result of a client: that of its training, or that it failed."""
    retried = ""
    while True:
        try:
            result = train_client(client, task, workspace)
            return replace(result, retried=retried) if retried else result
        except Exception as error:
            # A callback's mistake is not the client's, nor is a fault of the machine.
            if workspace.hooks.has_raised or is_of_machine(error) or workspace.options.clients.on_failure == "fail":
                raise
            workspace.module.zero_grad()  # what it leaves must not count for the next client
            if workspace.options.clients.on_failure == "skip" or retried:
                return ClientResult.of_failure(client, keep_error(client, task, workspace, error))
            retried = reason_of(error)


def keep_error(client: Client, task: PhaseTask, workspace: Workspace, error: Exception) -> str:
    """Write a client's traceback into the run's folder; what went wrong, in a line."""
    # Kept with its traceback: if every client fails, the first is raised unchanged.
    workspace.errors[client.id] = error
    # Not with its frames' variables, by which a step's whole graph would take the next client's memory.
    traceback.clear_frames(error.__traceback__)
    reason = reason_of(error)
    if workspace.folder is None or isinstance(error, ClientError):
        return reason
    name = f"round-{task.round + 1:05d}-{task.phase.name}-client-{client.id:06d}.txt"
    path = workspace.folder / FAILURES / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(traceback.format_exception(error)))
    return f"{reason} (traceback in {path})"


def reason_of(error: Exception) -> str:
    """State what a client did, in a line that follows on its name."""
    first_line = str(error).strip().split("\n")[0]
    if isinstance(error, ClientError):  # says what the client did; where that was noticed does not matter
        return first_line
    hint = "; lower data.batch_size" if is_out_of_memory(error) else ""
    return f"raised {type(error).__name__}: {first_line}{hint}"


def is_of_machine(error: Exception) -> bool:
    """Whether no client is to blame: a process was killed, or the disk is full or broken."""
    return isinstance(error, MachineError) or (isinstance(error, OSError) and error.errno in DISK_FAULTS)
