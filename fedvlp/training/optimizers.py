"""A fresh optimizer for each client, made once where that comes to the same."""

from __future__ import annotations

from typing import Any

from lightning import Fabric
from torch import Tensor
from torch.optim import Optimizer

from fedvlp.core.module import FederatedModule

Group = dict[str, Any]


class Optimizers:
    """Gives the clients of one phase their optimizers.

    PyTorch's own optimizers are made and wrapped for the first client; for the others the same one is emptied and its
    settings are set back, which is exactly a fresh one. All other optimizers are made anew.

    Args:
        fabric: device, precision and gradient scaling.
        module: whose tensors are trained.
    """

    def __init__(self, fabric: Fabric, module: FederatedModule) -> None:
        self.fabric, self.module = fabric, module
        self.kept: tuple[Optimizer, Any] | None = None
        self.groups: list[Group] = []

    def fresh(self) -> tuple[Optimizer, Any] | None:
        """Returns an optimizer without memory, and the same wrapped by Fabric; None if nothing is trainable."""
        if self.kept is not None and self._is_for(self.module.trainable()):
            optimizer = self.kept[0]
            optimizer.state.clear()
            optimizer.param_groups = [_copied(group) for group in self.groups]
            return self.kept
        made = self.module.configure_optimizers()
        if made is None:
            return None
        groups = [_copied(group) for group in made.param_groups]
        both = made, self.fabric.setup_optimizers(made)
        if self._can_be_emptied(made):
            self.kept, self.groups = both, groups
        return both

    def _is_for(self, trainable: list[Tensor]) -> bool:
        """Whether the kept optimizer trains these tensors, in this order."""
        known = [parameter for group in self.groups for parameter in group["params"]]
        return len(known) == len(trainable) and all(a is b for a, b in zip(known, trainable, strict=True))

    def _can_be_emptied(self, optimizer: Optimizer) -> bool:
        """Whether emptying gives a fresh one: no method or optimizer of somebody else, no memory from the beginning."""
        is_usual = type(self.module).configure_optimizers is FederatedModule.configure_optimizers
        return is_usual and type(optimizer).__module__.startswith("torch.optim.") and not optimizer.state


def _copied(group: Group) -> Group:
    """Returns a copy of a group's settings, for the same parameters."""
    copies = {name: value.clone() if isinstance(value, Tensor) else value for name, value in group.items()}
    return {**copies, "params": list(group["params"])}
