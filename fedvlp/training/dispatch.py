"""Calls the hooks of callbacks, each looked at only once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch.callbacks import Callback

from fedvlp.training.callback import FederationCallback


class Hooks:
    """The hooks of callbacks. One that does nothing is not called; the others take the arguments that they name.

    ``Fabric.call`` of Lightning 2.6 does the same, but looks at each signature anew at every call, that is at every
    local step.

    Args:
        callbacks: whose hooks are called, in this order.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self.callbacks = callbacks
        self.known: dict[str, list[tuple[Callable[..., Any], frozenset[str] | None]]] = {}

    def call(self, hook: str, **arguments: Any) -> None:
        """Calls one hook of every callback that has it."""
        if hook not in self.known:
            self.known[hook] = [(found, _wanted(found)) for found in map(hook_of(hook), self.callbacks) if found]
        for method, wanted in self.known[hook]:
            chosen = arguments if wanted is None else {name: arguments[name] for name in wanted & arguments.keys()}
            method(**chosen)


def hook_of(name: str) -> Callable[[Any], Callable[..., Any] | None]:
    """Returns a function from a callback to its hook of this name; to None if there is none or it does nothing."""
    idle = [getattr(base, name, None) for base in (FederationCallback, Callback)]

    def of(callback: Any) -> Callable[..., Any] | None:
        method: Callable[..., Any] | None = getattr(callback, name, None)
        return method if callable(method) and getattr(method, "__func__", method) not in idle else None

    return of


def _wanted(method: Callable[..., Any]) -> frozenset[str] | None:
    """Returns the names of a hook's parameters; None if it takes all."""
    parameters = inspect.signature(method).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)
