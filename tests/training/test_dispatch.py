"""Hooks are called with the arguments that they name, but those that do nothing."""

from __future__ import annotations

from fedvlp.training.callback import FederationCallback
from fedvlp.training.dispatch import Hooks


class Listener(FederationCallback):
    def __init__(self):
        self.heard = []

    def on_round_end(self, federation, row):
        self.heard.append((federation, row))


class Free:
    """No callback by class; it takes whatever there is."""

    def __init__(self):
        self.heard = []

    def on_round_end(self, **arguments):
        self.heard.append(arguments)


def test_hooks_take_the_arguments_that_they_name():
    arguments = {"federation": 1, "row": {"round": 2}, "trainer": 3}
    heard = []
    callbacks = [Listener(), FederationCallback(), Free()]
    callbacks[1].on_round_start = lambda cohort: heard.append(cohort)
    hooks = Hooks(callbacks)
    for hook in ("on_round_end", "on_nothing"):
        hooks.call(hook, **arguments)
    hooks.call("on_round_start", federation=1, cohort=[5], phases=[])
    assert [callbacks[0].heard, callbacks[2].heard] == [[(1, {"round": 2})], [arguments]]
    assert heard == [[5]]


def test_idle_hooks_are_not_called():
    hooks = Hooks([Listener(), FederationCallback()])
    for hook in ("on_round_end", "on_client_step", "on_fit_start"):
        hooks.call(hook, federation=None, row={}, trainer=None, pl_module=None)
    assert [len(hooks.known[hook]) for hook in ("on_round_end", "on_client_step", "on_fit_start")] == [1, 0, 0]
