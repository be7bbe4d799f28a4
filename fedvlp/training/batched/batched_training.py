"""Several clients' local training at once: their tensors stacked, each step one batched call, each result its own.

``torch.func.vmap`` runs a method's own ``training_step`` on the stacked tensors, so no method knows of it, and the
gradient of the sum of the clients' losses holds each client's own gradient. Results equal those of one client after
another but for rounding. What cannot be batched exactly is trained one client after another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch
from lightning import Fabric, LightningModule
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from fedvlp.core.module import FederatedModule, RoundContext
from fedvlp.core.protocols import Batch
from fedvlp.core.state import Client, State
from fedvlp.training.batched.shared_optimizer import CannotBatchError, memory_of, shared_optimizer
from fedvlp.training.batched.stacked_tensors import ModuleInventory, StackedTensors
from fedvlp.training.optimizer_state import optimizer_state
from fedvlp.utils.errors import UserError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Start:
    """What a client's local training begins with, besides the tensors that were loaded into the module.

    Attributes:
        context: where the federation stands.
        batches: one (inputs, labels) for each optimizer step.
        steps: how many they are.
        kept: what its optimizers remember in all phases; None where they start anew.
        memory: what the optimizer of this phase goes on from; None lets it start anew and forgets what it learns.
    """

    context: RoundContext
    batches: Iterator[Batch]
    steps: int
    kept: State | None
    memory: State | None


@dataclass(frozen=True)
class Trained:
    """What several clients' local training came to.

    Attributes:
        stack: their tensors and what was logged.
        starts: what they began with.
        losses: of each step, one a client.
        memory: what their optimizer remembers.
    """

    stack: StackedTensors
    starts: Sequence[Start]
    losses: Sequence[Tensor]
    memory: State


class SharedClient:
    """Stands for all clients of a step: only what they have in common can be read."""

    def __init__(self, clients: Sequence[Client]) -> None:
        first = vars(clients[0])
        vars(self).update({name: first[name] for name in first if len({vars(each)[name] for each in clients}) == 1})

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"a step depends on the client's {name}")


class BatchedTraining:
    """Trains clients of equally many images together.

    Where a step depends on the client's domain, clients of one domain are trained together. Where it cannot be batched,
    as it draws random numbers or goes by values, clients are trained one after another.

    Args:
        fabric: device and precision.
        module: whose tensors are trained.
        clients_per_step: at most so many clients at once.

    Raises:
        UserError: if gradients are scaled, as steps are then left out for some clients alone.
    """

    def __init__(self, fabric: Fabric, module: FederatedModule, clients_per_step: int) -> None:
        if clients_per_step > 1 and getattr(fabric.strategy.precision, "scaler", None) is not None:
            raise UserError(
                f"clients_per_step of {clients_per_step} needs a precision without scaled gradients. "
                "Use precision bf16-mixed or 32-true, or clients_per_step 1."
            )
        self.fabric, self.module, self.clients_per_step = fabric, module, clients_per_step
        self.alike: dict[str, tuple[str, ...]] = {}  # what the clients of a step have in common, by phase

    def train(
        self,
        phase: str,
        clients: Iterable[Client],
        alone: Callable[[Client], Result],
        start: Callable[[Client], Start],
        finish: Callable[[Start, Sequence[Tensor], State], Result],
        factor: float = 1.0,
    ) -> Iterator[Result]:
        """Yields the clients' results, those of clients that were trained together one after another.

        Args:
            phase: name of the running phase.
            clients: who trains.
            alone: trains one client and returns its result.
            start: loads what a client begins with into the module, and returns the rest of it.
            finish: makes the result of the client in the module, given its losses and its optimizer's memory.
            factor: on the learning rates of the optimizer.
        """
        if self.clients_per_step == 1:
            yield from map(alone, clients)
            return
        waiting, interior = deque(self._groups(phase, clients)), ModuleInventory(self.module)
        while waiting:
            group = waiting.popleft()
            if len(group) == 1:
                yield alone(group[0])
                continue
            try:
                trained = self._together(group, start, factor, interior)
            except CannotBatchError:
                waiting.extendleft([client] for client in reversed(group))
            except Exception as reason:  # they train again with fewer others, alone at last, where nothing is caught
                self._separate(phase, group, reason)
                waiting = deque(self._groups(phase, [client for each in (group, *waiting) for client in each]))
            else:
                yield from self._finished(trained, finish)

    def _groups(self, phase: str, clients: Iterable[Client]) -> list[list[Client]]:
        """Returns the clients of each step, who are alike in what matters."""
        alike, size = self.alike.get(phase, ("num_examples",)), self.clients_per_step
        found: dict[tuple[object, ...], list[Client]] = {}
        for client in clients:
            found.setdefault(tuple(getattr(client, name) for name in alike), []).append(client)
        return [group[at : at + size] for group in found.values() for at in range(0, len(group), size)]

    def _separate(self, phase: str, group: Sequence[Client], reason: Exception) -> None:
        """Lets clients of several domains train apart, and where they already did, each client."""
        if len({client.domain for client in group}) > 1:
            self.alike[phase] = ("num_examples", "domain")
            return
        self.alike[phase] = ("id",)
        line = str(reason).strip().split("\n")[0]
        self.fabric.print(f"phase {phase} has steps of one client alone, as it can't be batched: {line}", flush=True)

    def _together(
        self, group: Sequence[Client], start: Callable[[Client], Start], factor: float, interior: ModuleInventory
    ) -> Trained:
        """Trains clients in the same steps.

        Raises:
            CannotBatchError: if they do not take the same steps.
        """
        stack, starts = StackedTensors(self.module, interior), []
        for client in group:
            starts.append(start(client))
            stack.add()
        stack.stack()
        self.module.context = replace(starts[0].context, client=cast(Client, SharedClient(group)))
        optimizer = shared_optimizer(self.module, stack.trainable, [each.memory for each in starts], factor)
        losses = self._steps(stack, starts, optimizer)
        stack.check()
        memory = {} if starts[0].memory is None else optimizer_state(optimizer, stack.trainable)
        return Trained(stack, starts, losses, memory)

    def _steps(self, stack: StackedTensors, starts: Sequence[Start], optimizer: Optimizer) -> list[Tensor]:
        """Returns the losses of each step, one a client."""
        if len({each.steps for each in starts}) > 1:
            raise CannotBatchError
        wrapped: Any = self.fabric.setup_optimizers(optimizer)
        ends_steps = type(self.module).on_train_batch_end is not LightningModule.on_train_batch_end
        losses: list[Tensor] = []
        self.module.train()
        for index, batches in enumerate(zip(*(each.batches for each in starts), strict=True)):
            batch = self.fabric.to_device(_stacked_batch(batches))
            with self.fabric.autocast():
                loss = stack.call("training_step", batch, index)
            self.fabric.backward(loss.sum())
            wrapped.step()
            wrapped.zero_grad()
            losses.append(loss.detach())
            if ends_steps:
                stack.call("on_train_batch_end", losses[-1], batch, index)
        return losses

    def _finished(
        self, trained: Trained, finish: Callable[[Start, Sequence[Tensor], State], Result]
    ) -> Iterator[Result]:
        """Yields the clients' results."""
        for place, begun in enumerate(trained.starts):
            trained.stack.load(place)
            self.module.context = begun.context
            losses = [loss[place] for loss in trained.losses]
            yield finish(begun, losses, memory_of(trained.memory, place))


def _stacked_batch(batches: Sequence[Batch]) -> Batch:
    """Returns the clients' batches as one, [K, B, ...].

    Raises:
        CannotBatchError: if they are of different shapes.
    """
    if len({tuple(leaf.shape for leaf in tree_leaves(batch)) for batch in batches}) > 1:
        raise CannotBatchError
    stacked: Batch = tree_map(lambda *own: torch.stack(own), *map(tuple, batches))
    return stacked
