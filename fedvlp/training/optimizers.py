"""A fresh optimizer for each client, made once where that comes to the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightning import Fabric
from torch import Tensor
from torch.optim import Optimizer

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import State
from fedvlp.training.optimizer_state import load_optimizer_state, optimizer_state

ParameterGroup = dict[str, Any]


@dataclass(frozen=True)
class LocalOptimizer:
    """The optimizer of one client in one phase.

    Attributes:
        plain: PyTorch's optimizer.
        wrapped: the same as Fabric steps it, with scaled gradients where the precision asks for them.
        module: whose tensors it trains.
    """

    plain: Optimizer
    wrapped: Any
    module: FederatedModule

    def clip(self, fabric: Fabric, max_norm: float | None) -> None:
        """Shortens the gradient of all tensors together to a norm; as it is where that is None.

        One that is not finite stays so, for the update to be refused.
        """
        if max_norm is not None:
            fabric.clip_gradients(self.module, self.wrapped, max_norm=max_norm, error_if_nonfinite=False)

    def step(self) -> None:
        """Takes a step and forgets the gradients."""
        self.wrapped.step()
        self.wrapped.zero_grad()

    def state(self) -> State:
        """Returns its moments and step counts, to continue from in the next round."""
        return optimizer_state(self.plain, self.module.exchangeable_tensors())


class OptimizerFactory:
    """Gives the clients of one phase their optimizers.

    To make an optimizer and wrap it takes about as long as all else that the loop does for a client. So PyTorch's own
    are made for the first client only. For each other client the same one is reset: it forgets its state, and its
    settings are those of the first, which is exactly a fresh one. All other optimizers are made anew.

    Args:
        fabric: device, precision and gradient scaling.
        module: whose tensors are trained.
    """

    def __init__(self, fabric: Fabric, module: FederatedModule) -> None:
        self.fabric = fabric
        self.module = module
        self._reusable: LocalOptimizer | None = None
        self._first_groups: list[ParameterGroup] = []

    def fresh(self, factor: float = 1.0, state: State | None = None) -> LocalOptimizer | None:
        """Returns the optimizer of the client in the module; None if nothing is trainable.

        Args:
            factor: on its learning rates.
            state: moments that it continues from; it starts anew without.
        """
        optimizer = self._reset() or self._make()
        if optimizer is None:
            return None
        for group in optimizer.plain.param_groups:
            group["lr"] *= factor
        if state:
            load_optimizer_state(optimizer.plain, self.module.exchangeable_tensors(), state)
        _reset_gradient_scale(self.fabric)
        return optimizer

    def _reset(self) -> LocalOptimizer | None:
        """Returns the first client's optimizer as it was at first; None if it does not serve."""
        if self._reusable is None or not self._trains(self.module.trainable()):
            return None
        optimizer = self._reusable.plain
        optimizer.state.clear()
        optimizer.param_groups = [_copied(group) for group in self._first_groups]
        return self._reusable

    def _make(self) -> LocalOptimizer | None:
        """Returns a new optimizer, which is kept if it can be reset."""
        made = self.module.configure_optimizers()
        if made is None:
            return None
        first_groups = [_copied(group) for group in made.param_groups]
        optimizer = LocalOptimizer(made, self.fabric.setup_optimizers(made), self.module)
        if self._can_be_reset(made):
            self._reusable = optimizer
            self._first_groups = first_groups
        return optimizer

    def _trains(self, trainable: list[Tensor]) -> bool:
        """Whether the kept optimizer trains these tensors, in this order."""
        known: list[Tensor] = []
        for group in self._first_groups:
            known += group["params"]
        return len(known) == len(trainable) and all(a is b for a, b in zip(known, trainable, strict=True))

    def _can_be_reset(self, optimizer: Optimizer) -> bool:
        """Whether a reset gives a fresh one: no method or optimizer of somebody else, no state from the beginning."""
        is_usual = type(self.module).configure_optimizers is FederatedModule.configure_optimizers
        return is_usual and type(optimizer).__module__.startswith("torch.optim.") and not optimizer.state


def _copied(group: ParameterGroup) -> ParameterGroup:
    """Returns a copy of a group's settings, for the same parameters."""
    copies = {name: value.clone() if isinstance(value, Tensor) else value for name, value in group.items()}
    return {**copies, "params": list(group["params"])}


def _reset_gradient_scale(fabric: Fabric, scale: float = 1024.0) -> None:
    """Scales gradients anew, where precision 16-mixed does, so that no client depends on those before it.

    The scale is far below PyTorch's first, with which a client's first steps would overflow and be left out.
    """
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    if scaler is not None:
        scaler.load_state_dict({**scaler.state_dict(), "scale": scale, "_growth_tracker": 0})
