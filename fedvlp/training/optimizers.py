"""A fresh optimizer for each client, and what it remembers from round to round as tensors named after parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning import Fabric
from torch import Tensor
from torch.optim import Optimizer

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import State, detached
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import strip_prefix

GRADIENT_SCALE = 1024.0
"""Of precision 16-mixed as each client begins: with PyTorch's own first scale its first steps would overflow."""


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

    def step_and_clear(self) -> None:
        """Takes a step and forgets the gradients."""
        self.wrapped.step()
        self.wrapped.zero_grad()

    def state(self) -> State:
        """Its moments and step counts, to continue from in the next round."""
        return optimizer_state(self.plain, self.module.communicable_state())


def make_optimizer(fabric: Fabric, module: FederatedModule, factor: float, state: State) -> LocalOptimizer | None:
    """The optimizer of the client in the module; None if nothing is trainable, as in zero-shot CLIP.

    Args:
        fabric: device, precision and gradient scaling.
        module: whose tensors are trained.
        factor: on its learning rates.
        state: moments that it continues from; empty to start from scratch.
    """
    plain = module.configure_optimizers()
    if plain is None:
        return None
    optimizer = LocalOptimizer(plain, fabric.setup_optimizers(plain), module)
    for group in plain.param_groups:
        group["lr"] *= factor
    if state:
        load_optimizer_state(plain, module.communicable_state(), state)
    # Gradients are scaled from scratch, so that no client depends on those before it.
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    if scaler is not None:
        scaler.load_state_dict({**scaler.state_dict(), "scale": GRADIENT_SCALE, "_growth_tracker": 0})
    return optimizer


def optimizer_state(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> State:
    """Copies of an optimizer's moments and step counts, as ``<parameter>/<what it is>``.

    Args:
        optimizer: after some steps.
        tensors: the module's, by name; all that the optimizer trains are among them.

    Raises:
        UserError: if it remembers something else than tensors.
    """
    names = {parameter: name for name, parameter in tensors.items()}
    state: State = {}
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                state[f"{names[parameter]}/{key}"] = value
            elif value is not None:
                raise UserError(
                    f"{type(optimizer).__name__} remembers {key!r} as {type(value).__name__}; only tensors can be kept "
                    "between rounds. Set trainer.local.reset_optimizer to true, or use SGD, Adam or AdamW."
                )
    return detached(state)


def load_optimizer_state(optimizer: Optimizer, tensors: Mapping[str, Tensor], state: State) -> None:
    """Gives a fresh optimizer what :func:`optimizer_state` returned; learning rates and such stay its own."""
    names = {parameter: name for name, parameter in tensors.items()}
    by_index: dict[int, State] = {}
    # PyTorch numbers the parameters through all groups, in their order.
    index = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moments = strip_prefix(state, names[parameter])
            if moments:
                by_index[index] = {name: value.clone() for name, value in moments.items()}
            index += 1
    optimizer.load_state_dict({"state": by_index, "param_groups": optimizer.state_dict()["param_groups"]})
