"""A method for other classes than those it is trained for: made again around the same CLIP, with the same tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import lightning as L

from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import restored_generators
from fedvlp.utils.signatures import constructor_arguments

ADVICE = (
    "Use a method whose prompts or networks are the same for any classes, such as PromptFL or TRIP, or a protocol that "
    "measures no other classes"
)
Method = TypeVar("Method", bound=L.LightningModule)


def with_classes(method: Method, class_names: Sequence[str]) -> Method:
    """The same method for other classes, without its tensors' values.

    Args:
        method: any method that takes ``class_names``, built in or not.
        class_names: the other classes, in the order of their labels.

    Raises:
        UserError: if the method takes no class names, or one of its tensors has as many rows, columns or entries as
            there are classes, so that nothing was learned for others.
    """
    name = type(method).__name__
    trained_classes = list(method.hparams.get("class_names", ()))
    if not trained_classes:
        raise UserError(f"{name} takes no class_names, so it can't tell other classes. {ADVICE}.")
    others = _made_for(method, class_names)
    # Of as many other classes all shapes are equal, whatever they depend on: those of another number show it.
    probe = others
    if len(class_names) == len(trained_classes):
        # All of both lists, or one fewer where they are the same.
        both = list(dict.fromkeys([*trained_classes, *class_names]))
        probe = _made_for(method, both if len(both) != len(trained_classes) else both[:-1])
    expected = probe.state_dict()
    for tensor_name, tensor in method.state_dict().items():
        if tensor_name not in expected or expected[tensor_name].shape != tensor.shape:
            raise UserError(
                f"{name} learns for its own classes alone, as {tensor_name!r} has shape {tuple(tensor.shape)}, so it "
                f"can't tell other classes. {ADVICE}."
            )
    return others


def _made_for(method: Method, class_names: Sequence[str]) -> Method:
    """A method made by the same options, but for these classes."""
    arguments = constructor_arguments(type(method))
    options = {name: value for name, value in method.hparams.items() if name in arguments}
    options["class_names"] = list(class_names)
    # Neither is a hyperparameter, since a config describes both in its own way.
    parts = {"clip": getattr(method, "clip", None), "optimizer": getattr(method, "make_optimizer", None)}
    options |= {name: part for name, part in parts.items() if name in arguments and part is not None}
    with restored_generators():  # first values are drawn, and replaced by those of the method
        return type(method)(**options)
