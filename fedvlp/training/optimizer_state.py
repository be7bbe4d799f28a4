"""What an optimizer remembers from step to step, as tensors named after the parameters."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.optim import Optimizer

from fedvlp.core.state import State, detached
from fedvlp.utils.errors import UserError


def optimizer_state(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> State:
    """Returns copies of an optimizer's moments and step counts, as ``<parameter>/<what it is>``.

    Args:
        optimizer: after some steps.
        tensors: the module's, by name; all that the optimizer trains are among them.

    Raises:
        UserError: if it remembers something else than tensors.
    """
    names = {parameter: name for name, parameter in tensors.items()}
    kept: State = {}
    for parameter, memory in optimizer.state.items():
        for key, value in memory.items():
            if isinstance(value, Tensor):
                kept[f"{names[parameter]}/{key}"] = value
            elif value is not None:
                raise UserError(
                    f"{type(optimizer).__name__} remembers {key!r} as {type(value).__name__}; only tensors can be kept "
                    "between rounds. Set reset_optimizer to true, or use SGD, Adam or AdamW."
                )
    return detached(kept)


def load_optimizer_state(optimizer: Optimizer, tensors: Mapping[str, Tensor], state: State) -> None:
    """Lets a fresh optimizer remember what :func:`optimizer_state` returned; learning rates and such stay its own."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    names = {parameter: name for name, parameter in tensors.items()}
    memory: dict[int, State] = {}
    for index, parameter in enumerate(parameters):
        prefix = names[parameter] + "/"
        own = {name[len(prefix) :]: value.clone() for name, value in state.items() if name.startswith(prefix)}
        if own:
            memory[index] = own
    optimizer.load_state_dict({"state": memory, "param_groups": optimizer.state_dict()["param_groups"]})
