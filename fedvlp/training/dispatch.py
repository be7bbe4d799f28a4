"""Calls the hooks of callbacks, each looked at only once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning.pytorch.callbacks import Callback

from fedvlp.training.callback import FederationCallback

IDLE = (FederationCallback, Callback)
"""Their own hooks do nothing, so a hook that a callback inherits from them is not called."""


class Hooks:
    """The hooks of callbacks. One that does nothing is not called; the others take the arguments that they name.

    ``Fabric.call`` of Lightning 2.6 does the same, but looks at each signature anew at every call, so at every step.

    Args:
        callbacks: whose hooks are called, in this order; more may be added before the first call of a hook.
        common: arguments of every call.

    Attributes:
        has_raised: whether a hook has raised, which is not the fault of the client that trains.
    """

    def __init__(self, callbacks: Sequence[Any], common: Mapping[str, Any] | None = None) -> None:
        self.callbacks = callbacks
        self.common = dict(common or {})
        self.has_raised = False
        self.known: dict[str, list[tuple[Callable[..., Any], frozenset[str] | None]]] = {}

    def call(self, hook: str, **arguments: Any) -> None:
        """Calls one hook of every callback that has it."""
        if hook not in self.known:
            methods = [_hook_of(callback, hook) for callback in self.callbacks]
            self.known[hook] = [(method, _parameters(method)) for method in methods if method is not None]
        if not self.known[hook]:
            return
        given = self.common | arguments
        for method, names in self.known[hook]:
            chosen = given if names is None else {name: given[name] for name in names & given.keys()}
            try:
                method(**chosen)
            except Exception:
                self.has_raised = True
                raise


def _hook_of(callback: Any, name: str) -> Callable[..., Any] | None:
    """Returns a callback's hook of this name; None if there is none or it does nothing."""
    method: Callable[..., Any] | None = getattr(callback, name, None)
    if not callable(method):
        return None
    idle = [getattr(base, name, None) for base in IDLE]
    return None if getattr(method, "__func__", method) in idle else method


def _parameters(method: Callable[..., Any]) -> frozenset[str] | None:
    """Returns the names of a hook's parameters; None if it takes all."""
    parameters = inspect.signature(method).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)
