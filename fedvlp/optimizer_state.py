"""What an optimizer remembers from step to step, as tensors named after the parameters."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Optimizer

from fedvlp.errors import UserError
from fedvlp.state import State, detached


def optimizer_state(optimizer: Optimizer, module: nn.Module) -> State:
    """Returns copies of an optimizer's moments and step counts, as ``<parameter>/<what it is>``.

    Raises:
        UserError: if it remembers something else than tensors.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
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


def load_optimizer_state(optimizer: Optimizer, module: nn.Module, state: State) -> None:
    """Lets a fresh optimizer remember what :func:`optimizer_state` returned; learning rates and such stay its own."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    names = {parameter: name for name, parameter in module.named_parameters()}
    memory: dict[int, State] = {}
    for index, parameter in enumerate(parameters):
        prefix = names[parameter] + "/"
        own = {name[len(prefix) :]: value.clone() for name, value in state.items() if name.startswith(prefix)}
        if own:
            memory[index] = own
    optimizer.load_state_dict({"state": memory, "param_groups": optimizer.state_dict()["param_groups"]})
