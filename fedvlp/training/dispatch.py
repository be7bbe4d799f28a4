"""Calls the hooks of callbacks, each looked at only once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lightning.pytorch.callbacks import Callback

from fedvlp.training.callback import FederationCallback

IDLE = (FederationCallback, Callback)
"""Their own hooks do nothing, so a hook that a callback inherits from them is not called."""


class Hook(NamedTuple):
    """A hook of one callback.

    Attributes:
        callback: whose it is.
        method: what is called.
        names: the arguments that it takes by name; None if it takes all.
        by_place: whether it takes them by place, as Lightning gives them.
    """

    callback: Any
    method: Callable[..., Any]
    names: frozenset[str] | None
    by_place: bool


class Hooks:
    """The hooks of callbacks. One that does nothing is not called; the others take the arguments that they name.

    A hook of Lightning's that names them in another way takes them by place, as Lightning gives them.

    ``Fabric.call`` of Lightning 2.6 does the same, but looks at each signature anew at every call, so at every step.

    Args:
        callbacks: whose hooks are called, in this order; more may be added before the first call of a hook.
        common: arguments of every call.

    Attributes:
        has_raised: whether a hook has raised, which is not the fault of the client that trains.
        asked_to_stop: the callbacks that set ``should_stop`` of the trainer, in that order.
    """

    def __init__(self, callbacks: Sequence[Any], common: Mapping[str, Any] | None = None) -> None:
        self.callbacks = callbacks
        self.common = dict(common or {})
        self.has_raised = False
        self.asked_to_stop: list[Any] = []
        self.known: dict[str, list[Hook]] = {}

    def call(self, hook: str, **arguments: Any) -> None:
        """Calls one hook of every callback that has it."""
        if hook in self.known and not self.known[hook]:
            return
        given = self.common | arguments
        if hook not in self.known:
            self.known[hook] = [_described(each, hook, given) for each in self.callbacks if hook_of(each, hook)]
        for each in self.known[hook]:
            try:
                self._call(each, given, arguments)
            except Exception:
                self.has_raised = True
                raise

    def _call(self, hook: Hook, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """Calls a hook, and notes whether it asks the run to stop."""
        trainer = self.common.get("trainer")
        was_stopping = getattr(trainer, "should_stop", False)
        if hook.by_place:
            hook.method(trainer, self.common.get("pl_module"), *arguments.values())
        else:
            names = given if hook.names is None else hook.names & given.keys()
            hook.method(**{name: given[name] for name in names})
        if getattr(trainer, "should_stop", False) and not was_stopping:
            self.asked_to_stop.append(hook.callback)


def _described(callback: Any, name: str, given: Mapping[str, Any]) -> Hook:
    """Returns a callback's hook, with how it takes its arguments."""
    method = getattr(callback, name)
    parameters = inspect.signature(method).parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    names = None
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        names = frozenset(parameter.name for parameter in parameters)
    required = {each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD}
    # A hook such as `lambda trainer, module: ...`, or one that takes `*_`, knows Lightning's order alone.
    return Hook(callback, method, names, by_place=hasattr(Callback, name) and not required <= given.keys())


def hook_of(callback: Any, name: str) -> Callable[..., Any] | None:
    """Returns a callback's hook of this name; None if there is none or it does nothing."""
    method: Callable[..., Any] | None = getattr(callback, name, None)
    if not callable(method):
        return None
    idle = [getattr(base, name, None) for base in IDLE]
    return None if getattr(method, "__func__", method) in idle else method
