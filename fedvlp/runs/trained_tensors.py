"""Whether the tensors of a trained file are those that its method deploys and keeps on clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import RunState, State, is_finite, select
from fedvlp.utils.errors import UserError


def check_trained(path: Path, deployed: State, personal: Mapping[int, State], model: FederatedModule) -> None:
    """Compares names, types and shapes with the method's own tensors, and refuses what is not finite.

    Args:
        path: where the tensors are from, for the message.
        deployed: the tensors that are evaluated.
        personal: the personal tensors of each client, by client id; empty for a client that has none yet.
        model: the method.

    Raises:
        UserError: with the first tensor's name, if one is missing, one too many, of another type or shape, or not
            finite.
    """
    expected = model.communicable_state()
    shared = model.shared_state().keys()
    _check(path, deployed, {name: expected[name] for name in expected if name in shared}, _deployed_names(model))
    own = {name: expected[name] for name in model.personal_state()}
    for client, state in personal.items():
        if state:
            _check(path, state, own, set(own), f"personal/{client}/")


def check_resumed(path: Path, state: RunState, model: FederatedModule) -> None:
    """Compares all that a run resumes from with the method's own tensors, and refuses what is not finite.

    Args:
        path: where the state is from, for the message.
        state: what was read.
        model: the method.

    Raises:
        UserError: as :func:`check_trained`, for what the server shares and remembers and for optimizers, too.
    """
    shared = model.shared_state()
    _check(path, state.server.shared, shared, set(shared), "shared/")
    check_trained(path, state.server.deployed, state.personal, model)
    _check_finite(path, state.server.memory, "memory/")
    for client, moments in state.optimizer_states.items():
        _check_finite(path, moments, f"optimizer/{client}/")


def _deployed_names(model: FederatedModule) -> set[str]:
    """The names that are always deployed: all that is shared, or what phases deploy of it."""
    deployed: Mapping[str, Tensor] = model.shared_state()
    for phase in model.configure_phases():
        deployed = deployed if phase.deploy is None else select(deployed, phase.deploy)
    return set(deployed)


def _check(path: Path, state: State, allowed: Mapping[str, Tensor], required: set[str], prefix: str = "") -> None:
    """Compares one state with the method's tensors of these names."""
    for name in sorted(required - state.keys()):
        raise UserError(f"{path} lacks the tensor {prefix}{name}. Pass a file that a run of this method wrote.")
    for name, value in state.items():
        shown = f"{path} has a tensor {prefix + name!r}"
        if name not in allowed:
            raise UserError(f"{shown}, which the method doesn't take. Pass a file that a run of this method wrote.")
        expected = allowed[name]
        if value.dtype != expected.dtype:
            raise UserError(f"{shown} of {value.dtype}; expected {expected.dtype}.")
        if value.shape != expected.shape:
            raise UserError(
                f"{shown} in shape {tuple(value.shape)}; expected {tuple(expected.shape)}. "
                "Use the prompt length, experts and CLIP that it was trained with."
            )
    _check_finite(path, state, prefix)


def _check_finite(path: Path, state: State, prefix: str) -> None:
    """Refuses a state with a value that is NaN or infinite."""
    for name, value in state.items():
        if not is_finite({name: value}):
            shown = f"{path} has a tensor {prefix + name!r}"
            raise UserError(f"{shown} with values that are not finite. Train again, or pass an earlier checkpoint.")
