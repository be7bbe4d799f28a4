"""Several clients' local training at once: their tensors stacked, each step one batched call, each result its own.

``torch.func.vmap`` runs a method's own ``training_step`` on the stacked tensors, so no method knows of it, and the
gradient of the sum of the clients' losses holds each client's own gradient. Results equal those of one client after
another but for rounding. What cannot be batched exactly is trained one client after another.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from fedvlp.core.protocols import Batch
from fedvlp.core.state import Client
from fedvlp.training.batched.errors import CannotBatchError, UnequalStepsError
from fedvlp.training.batched.shared_optimizer import clip_each, shared_optimizer, state_of_client
from fedvlp.training.batched.stacked_tensors import ModuleInventory, StackedTensors
from fedvlp.training.client_trainer import ClientResult, ClientSlot, LoadedClient, PhaseOrder
from fedvlp.training.local_rules import GradientMean
from fedvlp.training.optimizer_state import optimizer_state
from fedvlp.training.optimizers import OptimizerFactory
from fedvlp.training.sequential import SequentialTrainer
from fedvlp.utils.errors import MachineError, UserError
from fedvlp.utils.seeding import restored_generators


class SharedClient(Client):
    """Stands for all clients of a step: only what they have in common can be read."""

    def __init__(self, clients: Sequence[Client]) -> None:
        for name, value in vars(clients[0]).items():
            if all(vars(client)[name] == value for client in clients):
                vars(self)[name] = value  # a client is frozen

    def __getattribute__(self, name: str) -> Any:
        if name in Client.__dataclass_fields__ and name not in vars(self):
            raise CannotBatchError(f"a step depends on the client's {name}")
        return super().__getattribute__(name)


class BatchedTrainer:
    """Trains clients of equally many images together.

    Where a step depends on the client's domain, clients of one domain are trained together. Where it cannot be batched,
    since it draws random numbers or depends on values, clients are trained one after another.

    Args:
        slot: the way of a client into the module and out of it.
        clients_per_step: at most so many clients at once.

    Raises:
        UserError: if gradients are scaled, as steps are then left out for some clients alone.
    """

    def __init__(self, slot: ClientSlot, clients_per_step: int) -> None:
        if getattr(slot.fabric.strategy.precision, "scaler", None) is not None:
            raise UserError(
                f"clients_per_step of {clients_per_step} needs a precision without scaled gradients. "
                "Use precision bf16-mixed or 32-true, or clients_per_step 1."
            )
        self.slot = slot
        self.clients_per_step = clients_per_step
        self.sequential = SequentialTrainer(slot)
        self.alike: dict[str, tuple[str, ...]] = {}  # what the clients of a step have in common, by phase

    def train(self, order: PhaseOrder, clients: Sequence[Client]) -> list[ClientResult]:
        """Returns the results of these clients; those that were trained together stand one after another."""
        module = self.slot.module
        optimizers = OptimizerFactory(self.slot.fabric, module)
        results: list[ClientResult] = []
        with restored_generators(), module.fixed_tensors():
            inventory = ModuleInventory(module)
            waiting = deque(self._groups(order, clients))
            while waiting:
                group = waiting.popleft()
                if len(group) == 1:
                    results.append(self.sequential.result_of(order, group[0], optimizers))
                    continue
                try:
                    results += self.train_together(order, group, inventory)
                except UnequalStepsError:
                    waiting.extendleft([client] for client in reversed(group))
                except CannotBatchError as reason:
                    # They train again with fewer others, alone at last, where a mistake of the method's own shows.
                    self._separate(order, group, reason)
                    remaining = itertools.chain(group, *waiting)
                    waiting = deque(self._groups(order, list(remaining)))
        self.slot.close()
        return results

    def train_together(
        self, order: PhaseOrder, group: Sequence[Client], inventory: ModuleInventory
    ) -> list[ClientResult]:
        """Returns the results of clients that take the same steps at the same time.

        Raises:
            UnequalStepsError: if they do not take the same steps; nothing is stored then.
            CannotBatchError: if a step cannot be batched; nothing is stored then.
        """
        slot = self.slot
        stack = StackedTensors(slot.module, inventory)
        loaded: list[LoadedClient] = []
        for client in group:
            loaded.append(self._load(order, client))
            stack.add()
        stack.stack()
        slot.module.context = replace(loaded[0].context, client=SharedClient(group))
        states = [each.optimizer_state for each in loaded]
        optimizer = shared_optimizer(slot.module, stack.trainable, states, order.learning_rate_factor)
        try:
            gradients = slot.local.gradient_mean(stack.trainable, loaded[0].visit)
            losses = self._steps(stack, loaded, optimizer, gradients)
        except (CannotBatchError, UnequalStepsError, MachineError):
            raise
        except Exception as error:  # a method's step may fail in any way where its tensors are stacks of hidden ones
            raise CannotBatchError(str(error)) from error
        stack.check()
        learned = {} if states[0] is None else optimizer_state(optimizer, stack.trainable)
        results: list[ClientResult] = []
        for place, each in enumerate(loaded):
            stack.load(place)
            slot.module.context = each.context
            slot.hooks.call("on_client_start", phase=order.phase, client=each.client, steps=each.steps)
            for loss in losses:
                slot.hooks.call("on_client_step", client=each.client, loss=loss[place])
            means = None if gradients is None else gradients.means(place)
            results.append(slot.collect(order, each, state_of_client(learned, place), means))
        return results

    def _load(self, order: PhaseOrder, client: Client) -> LoadedClient:
        """Loads a client; one whose data fail trains alone, so that only it is left out."""
        try:
            return self.slot.load(order, client)
        except MachineError:
            raise
        except Exception as error:
            raise UnequalStepsError("a client can't be loaded") from error

    def _groups(self, order: PhaseOrder, clients: Sequence[Client]) -> list[list[Client]]:
        """Returns the clients of each step, who are alike in what matters."""
        names = self.alike.get(order.phase.name, ("num_examples",))
        by_kind: dict[tuple[object, ...], list[Client]] = {}
        for client in clients:
            kind = tuple(getattr(client, name) for name in names)
            by_kind.setdefault(kind, []).append(client)
        groups: list[list[Client]] = []
        for alike in by_kind.values():
            for start in range(0, len(alike), self.clients_per_step):
                groups.append(alike[start : start + self.clients_per_step])
        return groups

    def _separate(self, order: PhaseOrder, group: Sequence[Client], reason: CannotBatchError) -> None:
        """Lets clients of several domains train apart, and where they already did, each client."""
        if len({client.domain for client in group}) > 1:
            self.alike[order.phase.name] = ("num_examples", "domain")
            return
        self.alike[order.phase.name] = ("id",)
        line = str(reason).strip().split("\n")[0]
        self.slot.fabric.print(
            f"phase {order.phase.name} has steps of one client alone, as it can't be batched: {line}", flush=True
        )

    def _steps(
        self,
        stack: StackedTensors,
        loaded: Sequence[LoadedClient],
        optimizer: Optimizer,
        gradients: GradientMean | None,
    ) -> list[Tensor]:
        """Returns the losses of each step, [K] each."""
        if len({each.steps for each in loaded}) > 1:
            raise UnequalStepsError("clients take different numbers of steps")
        fabric = self.slot.fabric
        module = self.slot.module
        wrapped: Any = fabric.setup_optimizers(optimizer)
        visits = [each.visit for each in loaded if each.visit is not None]
        terms = self.slot.local.terms(module, stack.trainable, visits)
        ends_steps = type(module).on_train_batch_end is not LightningModule.on_train_batch_end
        max_norm = self.slot.local.gradient_clip_val
        losses: list[Tensor] = []
        module.train()
        for index, batches in enumerate(zip(*(each.batches for each in loaded), strict=True)):
            batch = fabric.to_device(_stacked_batch(batches))
            with fabric.autocast():
                loss = stack.call("training_step", batch, index)
            fabric.backward(sum((term(stack.trainable) for term in terms), start=loss.sum()))
            if gradients is not None:
                gradients.note()
            if max_norm is not None:
                clip_each(stack.trainable.values(), max_norm)
            wrapped.step()
            wrapped.zero_grad()
            losses.append(loss.detach())
            if ends_steps:
                stack.call("on_train_batch_end", losses[-1], batch, index)
        return losses


def _stacked_batch(batches: Sequence[Batch]) -> Batch:
    """Returns the clients' batches as one, [K, B, ...].

    Raises:
        UnequalStepsError: if they are of different shapes.
    """
    shapes = [tree_map(lambda leaf: leaf.shape, tuple(batch)) for batch in batches]
    if any(shape != shapes[0] for shape in shapes):
        raise UnequalStepsError("clients have batches of different shapes")
    stacked: Batch = tree_map(lambda *own: torch.stack(own), *map(tuple, batches))
    return stacked
