"""Training of one client in one phase, and handling of clients that fail."""

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
from fedvlp.core.several_labels import image_losses, is_correct
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
from fedvlp.training.evaluation import current_mean
from fedvlp.training.local_training import make_optimizer, optimizer_state, reset_gradient_scale
from fedvlp.training.options import RunOptions
from fedvlp.training.task import ClientResult, PhaseTask, method_tensors
from fedvlp.utils.errors import MachineError, UserError, is_out_of_memory
from fedvlp.utils.files import write_text
from fedvlp.utils.seeding import derive_seed, restored_generators, seed_generators

# A retry does not fix these errors, and skipping the client would soon skip all clients.
DISK_FAULTS = {errno.ENOSPC, errno.EROFS, errno.EIO, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


class ClientError(Exception):
    """Raised when a client's result cannot be turned into an update."""


@dataclass(frozen=True)
class Workspace:
    """State shared by all rounds of a run: options, data, devices, and the one module into which tensors are loaded.

    Args:
        options: Options of the run. Their seed, with round, phase and client, fixes every random draw.
        phases: Phases of a round, with bound aggregators.
        initial_personal: Personal tensors of the module before the first round.
        validation: Validation splits of all domains, if an add-on measures clients.
        folder: Folder for the tracebacks of failed clients; None to write none.
        first_round: Index of this process's first round, from 0.
        optimizers: Optimizers that the next client can reuse, by the index of the current phase.
        errors: Exceptions of clients in the current phase, by client id.
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
    module.load_state(method_tensors(download))
    # After the download, because a method may derive the first personal state from it.
    module.load_state(personal_state(client, task, workspace))
    module.start_client(RoundContext(task.round, task.phase, client))
    batches, steps = local_batches(client, task, workspace)

    optimizer = prepare_optimizer(client, task, workspace)
    # Before seeding, so that random draws of add-ons do not change the method's draws.
    add_ons = begin_add_ons(client, task, workspace, download, optimizer, steps)
    # All later draws depend on seed, round, phase and client, but not on clients that trained before.
    seed_generators(task.seeds[client.id])
    if optimizer is not None:
        if not module.training:  # train() walks through all of CLIP
            module.train()
        for index, batch in enumerate(batches):
            inputs, labels = workspace.fabric.to_device(batch)
            with workspace.fabric.autocast():
                loss = check_loss(module, module.training_step((inputs, labels), index))
            workspace.fabric.backward(loss)
            # In separate backward passes: gradients accumulate, and the method's graph is already freed.
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

    upload = module.upload_state()
    # An invalid upload fails the client. The server checks uploads again, since it trusts no site.
    if problem := upload_error(upload):
        raise ClientError(problem)
    # Copied, because the next client trains the same tensors.
    upload, memory = add_ons.finish(detached(upload), task.index)
    update = ClientUpdate(client, upload, client.num_examples, module.logged_means())
    personal = module.personal_state()
    if optimizer is not None and not workspace.options.local.reset_optimizer:
        memory |= add_prefix(optimizer_state(optimizer.optimizer, module.communicable_state()), str(task.index))
    # All phases share one entry; this phase replaces only its own part.
    memory = task.client_memory(client) | memory
    # Stored before the update is accepted, so that with files only one client's tensors are in memory.
    stored = workspace.store.save(task.round, client.id, personal, memory)
    return ClientResult(update, *stored, is_finite(personal, memory))


def personal_state(client: Client, task: PhaseTask, workspace: Workspace) -> State:
    """Load a client's personal tensors of its last round, or make its initial ones."""
    if client.id in task.state.personal:
        return task.state.personal[client.id]
    if not workspace.initial_personal:
        return {}
    # The seed does not include the round, so a client's first tensors do not depend on when it joins.
    seed_generators(derive_seed(workspace.options.seed, client.id))
    return workspace.module.initial_personal_state(workspace.initial_personal)


def local_batches(client: Client, task: PhaseTask, workspace: Workspace) -> tuple[Iterator[Batch], int]:
    """Iterate over a client's batches in a phase, and count them; a straggler gets fewer."""

    def make_loader(shuffle: int) -> Loader:
        seed = task.seeds[client.id]
        # With a fraction of an epoch, one pass spans several rounds and must have the same order in all of them.
        if shuffle != task.round:
            seed = derive_seed(workspace.options.seed, shuffle, task.index, client.id)
        return workspace.data.train_dataloader(client, seed=seed, once=task.phase.one_pass)

    if task.phase.one_pass:
        loader = make_loader(task.round)
        batches, steps = iter(loader), len(loader)
    else:
        batches, steps = workspace.options.local.batches(make_loader, task.round)
    if client.id in task.step_shares:
        # Rounded up, so that each straggler takes at least one step.
        steps = math.ceil(task.step_shares[client.id] * steps)
        batches = islice(batches, steps)
    return batches, steps


def prepare_optimizer(client: Client, task: PhaseTask, workspace: Workspace) -> Any:
    """Make the client's optimizer, wrapped by Fabric; None if nothing is trainable."""
    module = workspace.module
    reset_gradient_scale(workspace.fabric)
    if task.index in workspace.optimizers:
        optimizer = workspace.optimizers[task.index]
        optimizer.optimizer.state.clear()
        return optimizer
    reset = workspace.options.local.reset_optimizer
    moments = {} if reset else strip_prefix(task.client_memory(client), str(task.index))
    optimizer = make_optimizer(workspace.fabric, module, task.learning_rate_factor, moments)
    # Building an optimizer per client takes a third of the loop's overhead. PyTorch's optimizers remember only their
    # state, so clearing it makes them new. An optimizer that the method configures may depend on the client.
    is_default = type(module).configure_optimizers is FederatedModule.configure_optimizers
    is_pytorchs = optimizer is not None and type(optimizer.optimizer).__module__.startswith("torch.optim.")
    if is_default and is_pytorchs and reset:
        workspace.optimizers[task.index] = optimizer
    return optimizer


def check_loss(module: FederatedModule, loss: object) -> Tensor:
    """Check that the loss of a step is a tensor."""
    if not isinstance(loss, Tensor):
        raise UserError(f"{type(module).__name__}.training_step must return the loss, a tensor; got {loss!r}.")
    return loss


class ActiveAddOns(list[tuple[AddOn, LocalContext]]):
    """The add-ons of one client's training with their contexts; often empty."""

    def backward(self, inputs: Inputs) -> None:
        """Add the gradients of the add-ons' losses, then let add-ons change the step's gradients."""
        for add_on, local in self:
            with local.fabric.autocast():
                loss = add_on.loss(local, inputs)
            if loss is not None:
                local.fabric.backward(loss)
        for add_on, local in self:
            add_on.after_backward(local)

    def finish(self, upload: State, phase_index: int) -> tuple[State, State]:
        """Collect the upload of the method and the add-ons, and the add-ons' memory on the client."""
        add_on_uploads: State = {}
        add_on_memory: State = {}
        for number, (add_on, local) in enumerate(self):
            upload, sent, memory = add_on.finish(local, upload)
            add_on_uploads |= add_prefix(detached(sent), f"{ADD_ON}/{number}")
            add_on_memory |= add_prefix(detached(memory), f"{ADD_ON}/{phase_index}/{number}")
        return upload | add_on_uploads, add_on_memory


def begin_add_ons(
    client: Client, task: PhaseTask, workspace: Workspace, download: State, optimizer: Any, steps: int
) -> ActiveAddOns:
    """Start the phase's add-ons, after the client's tensors have been loaded into the module."""
    active = ActiveAddOns()
    if not task.add_ons:
        return active
    # A client is measured on images of its own domains only.
    validation = [split.loader for split in workspace.validation if client in split.clients]
    mean = partial(current_mean, workspace.module, workspace.fabric)
    trained = workspace.module.trainable_by_name()
    start = {name: value.detach().clone() for name, value in trained.items()}
    memory = task.client_memory(client)
    for number, add_on in enumerate(task.add_ons):
        local = LocalContext(
            client=client,
            module=workspace.module,
            fabric=workspace.fabric,
            optimizer=optimizer,
            names=task.names,
            trained=trained,
            start=start,
            downloaded=method_tensors(download),
            received=workspace.fabric.to_device(strip_prefix(download, f"{ADD_ON}/{number}")),
            memory=workspace.fabric.to_device(strip_prefix(memory, f"{ADD_ON}/{task.index}/{number}")),
            steps=steps,
            proximal_weight=sum(add_on.proximal_weight for add_on in task.add_ons),
            seed=task.seeds[client.id],
            accuracy=partial(mean, validation, is_correct),
            # With a fixed seed, because rounding and augmentation depend on the order of the images.
            loss=lambda: mean([workspace.data.train_dataloader(client, seed=0, once=True)], image_losses),
        )
        add_on.begin(local)
        active.append((add_on, local))
    return active


def train_clients(clients: Sequence[Client], task: PhaseTask, workspace: Workspace) -> list[ClientResult]:
    """Train clients one after another in the one module."""
    workspace.optimizers.clear()  # learning rates may change with the round
    with restored_generators(), workspace.module.frozen_tensor_set():
        results = [try_client(client, task, workspace) for client in clients]
    # Without a context the module logs to Lightning, as outside a federation.
    workspace.module.context = None
    workspace.store.flush()
    return results


def try_client(client: Client, task: PhaseTask, workspace: Workspace) -> ClientResult:
    """Train a client; if it fails, skip it for this round, retry it once, or raise."""
    retried = ""
    while True:
        try:
            result = train_client(client, task, workspace)
            return replace(result, retried=retried) if retried else result
        except Exception as error:
            # Errors of callbacks and of the machine are not the client's fault.
            if workspace.hooks.has_raised or is_machine_fault(error) or workspace.options.clients.on_failure == "fail":
                raise
            workspace.module.zero_grad()  # its gradients must not reach the next client
            if workspace.options.clients.on_failure == "skip" or retried:
                return ClientResult.from_failure(client, save_error(client, task, workspace, error))
            retried = describe_error(error)


def save_error(client: Client, task: PhaseTask, workspace: Workspace, error: Exception) -> str:
    """Write a client's traceback into the run folder, and describe the error in one line."""
    # Stored with its traceback, because the first error is raised again if every client fails.
    workspace.errors[client.id] = error
    # Without local variables, which would keep the failed step's graph in memory.
    traceback.clear_frames(error.__traceback__)
    reason = describe_error(error)
    if workspace.folder is None or isinstance(error, ClientError):
        return reason
    name = f"round-{task.round + 1:05d}-{task.phase.name}-client-{client.id:06d}.txt"
    path = workspace.folder / "failures" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(traceback.format_exception(error)))
    return f"{reason} (traceback in {path})"


def describe_error(error: Exception) -> str:
    """Describe a client's error in one line that follows the client's name."""
    first_line = str(error).strip().split("\n")[0]
    if isinstance(error, ClientError):  # its message already describes the client's mistake
        return first_line
    hint = "; lower data.batch_size" if is_out_of_memory(error) else ""
    return f"raised {type(error).__name__}: {first_line}{hint}"


def is_machine_fault(error: Exception) -> bool:
    """Whether the machine caused an error: a killed process, or a full or broken disk."""
    return isinstance(error, MachineError) or (isinstance(error, OSError) and error.errno in DISK_FAULTS)
