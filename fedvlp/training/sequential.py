"""Clients trained one after another: the life of one client in one phase, in the order in which it happens."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedvlp.core.protocols import Batch
from fedvlp.core.state import Client
from fedvlp.training.client_trainer import ClientResult, ClientSlot, PhaseOrder
from fedvlp.training.optimizers import LocalOptimizer, OptimizerFactory
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import restored_generators, seed_generators


class SequentialTrainer:
    """Trains clients one after another in the one resident module.

    Args:
        slot: the way of a client into the module and out of it.
    """

    def __init__(self, slot: ClientSlot) -> None:
        self.slot = slot

    def train(self, order: PhaseOrder, clients: Sequence[Client]) -> list[ClientResult]:
        """Returns the results of these clients, in their order."""
        optimizers = OptimizerFactory(self.slot.fabric, self.slot.module)
        with restored_generators(), self.slot.module.fixed_tensors():
            results = [self.train_client(order, client, optimizers) for client in clients]
        self.slot.close()
        return results

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
        for index, batch in enumerate(loaded.batches):
            loss = self._step(optimizer, batch, index)
            slot.hooks.call("on_client_step", client=client, loss=loss)
        return slot.collect(order, loaded, {} if loaded.optimizer_state is None else optimizer.state())

    def _step(self, optimizer: LocalOptimizer, batch: Batch, index: int) -> Tensor:
        """Takes one optimizer step on a batch, and returns its loss without a graph."""
        fabric = self.slot.fabric
        module = self.slot.module
        inputs, labels = fabric.to_device(batch)
        with fabric.autocast():
            loss = module.training_step((inputs, labels), index)
        if not isinstance(loss, Tensor):
            raise UserError(f"{type(module).__name__}.training_step must return the loss, a tensor; got {loss!r}.")
        fabric.backward(loss)
        optimizer.step()
        module.on_train_batch_end(loss, (inputs, labels), index)
        return loss.detach()
