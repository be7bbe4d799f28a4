"""A method for other classes than those it is trained for: made anew around the same CLIP, with the same tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import restored_generators
from fedvlp.utils.signatures import constructor_arguments

ADVICE = (
    "Use a method whose prompts or networks are the same for any classes, such as PromptFL or TRIP, or a protocol that "
    "measures no other classes"
)
Method = TypeVar("Method", bound=nn.Module)


def with_classes(method: Method, class_names: Sequence[str]) -> Method:
    """Returns the same method for other classes, without its tensors' values.

    Args:
        method: any method that takes ``class_names``, built in or not.
        class_names: the other classes, in the order of their labels.

    Raises:
        UserError: if the method takes no class names, or one of its tensors has as many rows, columns or numbers as
            there are classes, so that nothing was learned for others.
    """
    own = list(_hyperparameters(method).get("class_names", ()))
    if not own:
        raise UserError(f"{type(method).__name__} takes no class_names, so it can't tell other classes. {ADVICE}.")
    others = _made_for(method, class_names)
    # Of as many other classes all shapes are equal, whatever they depend on.
    probe = others if len(class_names) != len(own) else _made_for(method, _another_number(own, class_names))
    _check_shapes(method, probe)
    return others


def _made_for(method: Method, class_names: Sequence[str]) -> Method:
    """Returns a method made by the same options, but for these classes."""
    known = constructor_arguments(type(method))
    options = {name: value for name, value in _hyperparameters(method).items() if name in known}
    options["class_names"] = list(class_names)
    given = {"clip": getattr(method, "clip", None), "optimizer": getattr(method, "make_optimizer", None)}
    options |= {name: value for name, value in given.items() if name in known and value is not None}
    with restored_generators():  # first values are drawn, and replaced by those of the method
        return type(method)(**options)


def _another_number(own: Sequence[str], others: Sequence[str]) -> list[str]:
    """Returns another number of classes than a method has: all of both lists, or one fewer where they are the same."""
    both = list(dict.fromkeys([*own, *others]))
    return both if len(both) != len(own) else both[:-1]


def _check_shapes(method: nn.Module, probe: nn.Module) -> None:
    """Raises if a tensor depends on the number of classes."""
    expected = _tensors(probe)
    for name, tensor in _tensors(method).items():
        if name not in expected or expected[name].shape != tensor.shape:
            raise UserError(
                f"{type(method).__name__} learns for its own classes alone, as {name!r} has shape "
                f"{tuple(tensor.shape)}, so it can't tell other classes. {ADVICE}."
            )


def _hyperparameters(method: nn.Module) -> Mapping[str, Any]:
    return dict(getattr(method, "hparams", {}))


def _tensors(method: nn.Module) -> dict[str, Tensor]:
    """Returns all tensors by name, themselves and no copies; those of the frozen CLIP are not among them."""
    return dict(method.state_dict(keep_vars=True))
