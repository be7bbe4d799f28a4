"""What every strategy, the server's side of a phase, must keep to."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch

from fedvlp.core.phases import is_linear
from fedvlp.core.state import ClientUpdate, ServerState, State
from fedvlp.core.strategies import Strategy
from fedvlp.testing.comparing import difference
from fedvlp.testing.failures import require
from fedvlp.testing.uploads import masked, require_frozen, starting_state, updates_of

ROUNDING = 1e-4


def check_strategy(
    strategy: Strategy, shared: State | None = None, updates: Sequence[ClientUpdate] | None = None
) -> None:
    """Lets a strategy combine uploads, and checks what every strategy must keep to.

    Args:
        strategy: The strategy, with its options.
        shared: What the server starts from; two made-up tensors if not given.
        updates: What clients send, in the order of their ids; if not given, of four clients of two domains, each with
            all shared tensors.

    Raises:
        ContractError: if it does not keep to something; says to what.
        UserError: if its ``check`` refuses the clients. Then give updates of others.
    """
    name = type(strategy).__name__
    require(isinstance(strategy, Strategy), f"{name} must have the methods broadcast, aggregate and check.")
    require_frozen(strategy, name)
    server = ServerState.start(starting_state() if shared is None else shared)
    sent = updates_of(server.shared) if updates is None else list(updates)
    strategy.check([update.client for update in sent])
    _check_broadcast(strategy, name, server, sent)
    for cohort in (sent, sent[1:], sent[:1]):
        _check_aggregate(strategy, name, server, cohort)
    _check_empty_cohort(strategy, name, server)
    _check_linear(strategy, name, server, sent)


def _check_broadcast(strategy: Strategy, name: str, server: ServerState, sent: Sequence[ClientUpdate]) -> None:
    given = copy.deepcopy(server)
    for update in sent:
        download = strategy.broadcast(server, update.client)
        again = strategy.broadcast(server, update.client)
        odd = [key for key, value in download.items() if not isinstance(value, torch.Tensor)]
        require(not odd, f"{name}.broadcast must give tensors; {odd} are none.")
        found = difference(download, again)
        require(not found, f"{name}.broadcast must give the same for the same server and client, but {found}.")
    require(repr(server) == repr(given), f"{name}.broadcast must not change the server.")


def _check_aggregate(strategy: Strategy, name: str, server: ServerState, sent: Sequence[ClientUpdate]) -> None:
    """Checks that ``aggregate`` is a pure function to a server state of the same tensors."""
    who = f"{name}.aggregate, of {len(sent)} clients,"
    given = copy.deepcopy((server, list(sent), strategy))
    after = strategy.aggregate(server, sent)
    again = strategy.aggregate(server, sent)
    require(repr((server, list(sent), strategy)) == repr(given), f"{who} must change nothing that it is given.")
    require(isinstance(after, ServerState), f"{who} must return a ServerState; it returns {type(after).__name__}.")
    for part in ("shared", "deployed", "memory"):
        found = difference(getattr(after, part), getattr(again, part))
        require(not found, f"{who} must give the same for the same updates, but in {part} {found}.")
        _check_tensors(getattr(after, part), f"{who} in {part}")
    expected = {key: (value.shape, value.dtype) for key, value in server.shared.items()}
    kinds = {key: (value.shape, value.dtype) for key, value in after.shared.items()}
    odd = sorted(key for key in expected | kinds if expected.get(key) != kinds.get(key))
    require(not odd, f"{who} must keep names, shapes and formats of what is shared; {odd} became others.")
    extra = sorted(after.deployed.keys() - after.shared.keys())
    require(not extra, f"{who} may deploy what is shared; {extra} is not.")
    require(after.round == server.round, f"{who} must leave round as it is: the federation counts.")


def _check_tensors(state: State, where: str) -> None:
    for key, value in state.items():
        require(isinstance(value, torch.Tensor), f"{where} {key!r} must be a tensor, which checkpoints hold.")
        require(not value.requires_grad, f"{where} {key!r} must not keep a gradient: detach it.")
        require(
            bool(torch.isfinite(value).all()), f"{where} {key!r} is NaN or infinite, though all uploads are finite."
        )


def _check_empty_cohort(strategy: Strategy, name: str, server: ServerState) -> None:
    found = difference(strategy.aggregate(server, []).shared, server.shared, ROUNDING)
    require(not found, f"{name}.aggregate must change nothing that is shared where nobody sent anything, but {found}.")


def _check_linear(strategy: Strategy, name: str, server: ServerState, sent: Sequence[ClientUpdate]) -> None:
    """Checks that a strategy that combines by linear rules alone needs the weighted sum of the uploads alone."""
    if not is_linear(strategy):
        return
    server = ServerState.start({key: value.double() for key, value in server.shared.items()})
    plain = [_alike(update) for update in sent]
    states = {update.client.id: update.state for update in plain}
    hidden = masked(states, dict.fromkeys(states, 1.0))
    after = strategy.aggregate(server, [replace(update, state=hidden[update.client.id]) for update in plain])
    found = difference(after.shared, strategy.aggregate(server, plain).shared, ROUNDING)
    told = f"{name}.reduces_cohort says that uploads count in their weighted sum alone, but with the same sum {found}"
    require(not found, f"{told}. Let reduces_cohort be false.")


def _alike(update: ClientUpdate) -> ClientUpdate:
    """Returns an update in float64 of a client with as many images as all others, however clients are weighed."""
    client = replace(update.client, num_examples=1)
    return ClientUpdate(client, {key: value.double() for key, value in update.state.items()}, 1)
