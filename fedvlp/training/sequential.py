"""Clients trained one after another: the life of one client in one phase, in the order in which it happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedvlp.core.protocols import Batch, Inputs
from fedvlp.core.state import Client
from fedvlp.training.client_trainer import ClientResult, ClientSlot, PhaseOrder
from fedvlp.training.failures import is_of_machine, is_out_of_memory, reason_of
from fedvlp.training.local_rules import GradientMean, Visit
from fedvlp.training.optimizers import LocalOptimizer, OptimizerFactory
from fedvlp.training.time_limit import time_limit
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import restored_generators, seed_generators


class SequentialTrainer:
    """Trains clients one after another in the one resident module.

    Args:
        slot: the way of a client into the module and out of it.
    """

    def __init__(self, slot: ClientSlot) -> None:
        self.slot = slot
        self.parts_of_step = 1  # more once the memory did not suffice

    def train(self, order: PhaseOrder, clients: Sequence[Client]) -> list[ClientResult]:
        """Returns the results of these clients, in their order."""
        optimizers = OptimizerFactory(self.slot.fabric, self.slot.module)
        with restored_generators(), self.slot.module.fixed_tensors():
            results = [self._taken(order, self.result_of(order, client, optimizers)) for client in clients]
        self.slot.close()
        return results

    def _taken(self, order: PhaseOrder, result: ClientResult) -> ClientResult:
        """Returns a result, whose upload is not kept where large ones are added up and no other process has some."""
        if order.adding is None or self.slot.fabric.world_size > 1:
            return result
        return order.adding.take(result)

    def result_of(self, order: PhaseOrder, client: Client, optimizers: OptimizerFactory) -> ClientResult:
        """Returns the result of one client, which is that it failed if it raises."""
        failures = self.slot.failures
        tries = 2 if failures.policy.on_client_failure == "retry" else 1
        retried = ""
        while True:
            try:
                with time_limit(failures.policy.client_timeout):
                    result = self.train_client(order, client, optimizers)
                return replace(result, retried=retried) if retried else result
            except Exception as error:
                # A callback's mistake is not the client's, nor is a fault of the machine.
                is_of_others = self.slot.hooks.has_raised or is_of_machine(error)
                if is_of_others or failures.policy.on_client_failure == "fail":
                    raise
                self.slot.module.zero_grad()  # what it leaves must not count for the next client
                retried = retried or reason_of(error)
                if is_out_of_memory(error) and self._can_split_steps():
                    self.parts_of_step = 2
                    continue
                tries -= 1
                if not tries:
                    reason = failures.keep(order.round, order.phase.name, client, error)
                    return ClientResult.of_failure(client, reason)

    def train_client(self, order: PhaseOrder, client: Client, optimizers: OptimizerFactory) -> ClientResult:
        """Returns the result of one client.

        Args:
            order: the phase.
            client: who trains.
            optimizers: makes the optimizers of all clients of the phase.
        """
        slot = self.slot
        loaded = slot.load(order, client)
        slot.hooks.call("on_client_start", phase=order.phase, client=client, steps=loaded.steps)
        seed_generators(loaded.seed)
        optimizer = optimizers.fresh(order.learning_rate_factor, loaded.optimizer_state)
        if optimizer is None:  # nothing is trainable, as in zero-shot CLIP
            return slot.collect(order, loaded, {})
        if not slot.module.training:
            slot.module.train()
        trained = slot.module.trainable_by_name() if slot.local.proximal_weight or loaded.visit is not None else {}
        terms = slot.local.terms(slot.module, trained, [] if loaded.visit is None else [loaded.visit])
        gradients = slot.local.gradient_mean(trained, loaded.visit)
        for index, batch in enumerate(loaded.batches):
            for term in terms:
                slot.fabric.backward(term(trained))
            loss = self._step(optimizer, batch, index, loaded.visit, gradients)
            slot.hooks.call("on_client_step", client=client, loss=loss)
        means = None if gradients is None else gradients.means()
        return slot.collect(order, loaded, {} if loaded.optimizer_state is None else optimizer.state(), means)

    def _step(
        self, optimizer: LocalOptimizer, batch: Batch, index: int, visit: Visit | None, gradients: GradientMean | None
    ) -> Tensor:
        """Takes one optimizer step on a batch, and returns its loss without a graph."""
        module = self.slot.module
        whole = self.slot.fabric.to_device(batch)
        if self.parts_of_step == 1:
            loss = self._backward(whole, index, 1.0, visit)
        else:
            # The gradient of a mean over images is the sum of the parts' gradients, each with its share of the images.
            parts = split_batch(whole, self.parts_of_step)
            losses = [self._backward(part, index, len(part[1]) / len(whole[1]), visit) for part in parts]
            loss = torch.stack(losses).sum()
        if gradients is not None:
            gradients.note()
        optimizer.clip(self.slot.fabric, self.slot.local.gradient_clip_val)
        optimizer.step()
        module.on_train_batch_end(loss, whole, index)
        return loss

    def _backward(self, batch: Batch, index: int, share: float, visit: Visit | None) -> Tensor:
        """Adds the gradient of a share of the loss of a batch, and returns that share without a graph."""
        module = self.slot.module
        with self.slot.fabric.autocast():
            loss = module.training_step(batch, index)
        if not isinstance(loss, Tensor):
            raise UserError(f"{type(module).__name__}.training_step must return the loss, a tensor; got {loss!r}.")
        if share != 1.0:
            loss = loss * share
        self.slot.fabric.backward(loss)
        if visit is not None:
            self._backward_of_rule(visit, batch[0], share)
        return loss.detach()

    def _backward_of_rule(self, visit: Visit, inputs: Inputs, share: float) -> None:
        """Adds the gradient of a share of what a rule adds to the loss of a batch."""
        with self.slot.fabric.autocast():
            added = self.slot.rule.rule.batch_loss(visit, inputs)
        if added is not None:
            self.slot.fabric.backward(share * added)

    def _can_split_steps(self) -> bool:
        """Whether a step can go in two parts that need half the memory, with the same gradient but for rounding."""
        return self.parts_of_step == 1 and bool(getattr(self.slot.module, "averages_over_batch", False))


def split_batch(batch: Batch, parts: int) -> list[Batch]:
    """Returns a batch in parts of equally many images, or as nearly so as can be; none is empty.

    >>> [labels.tolist() for _, labels in split_batch((torch.zeros(3, 1), torch.tensor([5, 6, 7])), 2)]
    [[5, 6], [7]]
    """
    inputs, labels = batch
    bounds = torch.arange(len(labels)).tensor_split(min(parts, len(labels)))
    found: list[Batch] = []
    for places in bounds:
        inputs_part = tree_map(lambda leaf, places=places: leaf[places[0] : places[-1] + 1], inputs)
        found.append((inputs_part, labels[places[0] : places[-1] + 1]))
    return found
