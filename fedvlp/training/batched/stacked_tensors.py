"""A module's tensors of several clients, stacked, and its methods run on all of them by one batched call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap, functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import State, matches_prefix
from fedvlp.training.batched.errors import CannotBatchError

Logged = list[dict[str, list[Tensor]]]


class ModuleInventory:
    """All that is inside a module, looked up once.

    Args:
        module: none of its tensors may be replaced later.
    """

    def __init__(self, module: nn.Module) -> None:
        self.modules = list(module.modules())
        self.tensors: State = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def versions(self) -> dict[str, int]:
        """Returns how often each tensor was changed in place."""
        return {name: value._version for name, value in self.tensors.items()}

    def batched(self) -> list[str]:
        """Returns the names of attributes and buffers that hold a tensor of a batched call, which is over."""
        found: list[str] = []
        for module in self.modules:
            values = [*vars(module).items(), *module.named_buffers(recurse=False)]
            found += [name for name, value in values if isinstance(value, Tensor) and debug_unwrap(value) is not value]
        return found


class StackedTensors:
    """The tensors that differ between clients, [K, ...] each, beside those of the module that all share.

    Args:
        module: whose methods are run.
        inventory: all that is inside the module.
    """

    def __init__(self, module: FederatedModule, inventory: ModuleInventory) -> None:
        self.module = module
        self._call = _Call(module)
        self._inventory = inventory
        self._tensors = inventory.tensors
        self._versions = inventory.versions()
        self._copies: list[State] = []
        self.stacked: State = {}
        self.logged: Logged = []

    def add(self) -> None:
        """Takes what was just loaded into the module as one more client's."""
        if not self._copies:
            now = self._inventory.versions()
            names = [name for name, value in self._tensors.items() if now[name] != self._versions[name]]
            self._names = dict.fromkeys([*names, *self.module.exchangeable_tensors()])
        self._copies.append({name: self._tensors[name].detach().clone() for name in self._names})
        self.logged.append({})

    def stack(self) -> None:
        """Stacks what is trained, what stays on the clients, and all that differs between them."""
        for name in self._names:
            values = [copy[name] for copy in self._copies]
            is_trained = self._tensors[name].requires_grad
            is_kept = matches_prefix((*self.module.personal, *self.module.train_only_personal), name)
            are_equal = all(torch.equal(value, values[0]) for value in values[1:])
            if is_trained or is_kept or not are_equal:
                self.stacked[name] = torch.stack(values).requires_grad_(is_trained)
        self._copies = []
        self._versions = self._inventory.versions()

    @property
    def trainable(self) -> State:
        """Those that get gradients, by name, in the order in which an optimizer takes them."""
        return {name: value for name, value in self.stacked.items() if value.requires_grad}

    def call(self, method: str, *arguments: Any) -> Any:
        """Returns what a method of the module returns for each client, [K, ...]; keeps what it logged.

        Args:
            method: its name.
            arguments: numbers are the same for all clients; tensors have clients first.
        """

        def one(tensors: State, *own: Any) -> Any:
            given = {f"module.{name}": value for name, value in tensors.items()}
            return functional_call(self._call, given, (method, *own), tie_weights=False)

        per_client = (0, *(None if isinstance(argument, int) else 0 for argument in arguments))
        with batchable_attention():
            result, logged = vmap(one, in_dims=per_client)(self.stacked, *arguments)
        for name, values in logged.items():
            for client, own in enumerate(self.logged):
                own.setdefault(name, []).extend(value[client] for value in values)
        return result

    def check(self) -> None:
        """Refuses a method that left anything but the stacked tensors changed.

        Raises:
            CannotBatchError: if it did.
        """
        now = self._inventory.versions()
        changed = [name for name in now if name not in self.stacked and now[name] != self._versions[name]]
        if changed := [*changed, *self._inventory.batched()]:
            raise CannotBatchError(f"a step changes {changed[0]}")

    @torch.no_grad()
    def load(self, client: int) -> None:
        """Puts one client's tensors, and what was logged for it, into the module."""
        for name, values in self.stacked.items():
            self._tensors[name].copy_(values[client])
        self.module.put_logs(self.logged[client])


@contextmanager
def batchable_attention() -> Iterator[None]:
    """Lets attention be computed by what has a batching rule on every device."""
    was_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fast)


class _Call(nn.Module):
    """Any method of a module as a forward pass, which returns what was logged too."""

    def __init__(self, module: FederatedModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, method: str, *arguments: Any) -> tuple[Any, dict[str, list[Tensor]]]:
        """Returns what the method returns, an empty tuple for None."""
        self.module.put_logs({})
        result = getattr(self.module, method)(*arguments)
        return () if result is None else result, self.module.take_logs()
