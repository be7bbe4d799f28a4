"""What a federation needs to be continued, in one safetensors file: tensors, and JSON in its header. No pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedvlp.core.state import CallbackStates, RunState, ServerState, State, add_prefix, strip_prefix
from fedvlp.runs.client_store import FOLDER, StatesOnDisk, are_at_sites, files_of
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import check_header, read_header, read_tensors, write_tensors

AT_SITES = "at_sites"
"""The header's entry that the clients' files are at their sites; simulations' files lack it."""
DEPLOYS_SHARED = "deploys_shared"
"""The header's entry that the deployed tensors are the shared ones, which are then stored once."""
CALLBACKS = "callbacks"
"""Under which header and tensors hold what callbacks remember; left out where none does."""
LONGEST_SHOWN = 200
"""Characters of a value in a message."""


class TrainedState(NamedTuple):
    """What is needed to evaluate a trained method.

    Attributes:
        deployed: the tensors that are evaluated.
        personal: the personal tensors of each client, by client id.
        model: description of the method that they belong to.
    """

    deployed: State
    personal: Mapping[int, State]
    model: dict[str, Any]


def save_checkpoint(path: Path, state: RunState, description: Mapping[str, Any], history: str = "") -> None:
    """Writes a checkpoint; a reader sees all of it or nothing.

    Args:
        path: the file, in a folder of the run's folder.
        state: what to continue from.
        description: of the run.
        history: the rounds' metrics as JSON, one a line, where the caller has them; they are made here if not.
    """
    server = state.server
    tensors = add_prefix(server.shared, "shared")
    deploys_shared = _are_same(server.shared, server.deployed)
    if not deploys_shared:
        tensors |= add_prefix(server.deployed, "deployed")
    tensors |= add_prefix(server.memory, "memory")
    files = files_of(state.personal, state.optimizer_states)
    if not files:
        tensors |= _of_all_clients(state.personal, "personal")
        tensors |= _of_all_clients(state.optimizer_states, "optimizer")
    callbacks, of_callbacks = split_states(state.callbacks)
    header = {
        "kind": "checkpoint",
        "round": server.round,
        "clients": sorted(state.personal),
        "optimizers": sorted(state.optimizer_states),
        "history": history or "\n".join(json.dumps(metrics) for metrics in state.history),
        "description": dict(description),
        "files": files,
        **({DEPLOYS_SHARED: True} if deploys_shared else {}),
        **({CALLBACKS: callbacks} if callbacks else {}),
        **_where(state.personal, state.optimizer_states),
    }
    write_tensors(path, tensors | add_prefix(of_callbacks, CALLBACKS), header)


def load_checkpoint(path: Path) -> tuple[RunState, dict[str, Any]]:
    """Returns the run state and the description of the run that wrote it.

    Raises:
        UserError: if the file is missing, damaged, or not a checkpoint.
    """
    tensors, header = read_tensors(path)
    check_header(path, header, "checkpoint")
    server = ServerState(
        shared=strip_prefix(tensors, "shared"),
        deployed=_deployed(tensors, header),
        memory=strip_prefix(tensors, "memory"),
        round=header["round"],
    )
    state = RunState(
        server=server,
        personal=_by_client(path, "personal", header["clients"], tensors, header),
        history=tuple(json.loads(row) for row in header["history"].splitlines()),
        optimizer_states=_by_client(path, "optimizer", header["optimizers"], tensors, header),
        callbacks=join_states(header.get(CALLBACKS), strip_prefix(tensors, CALLBACKS)),
    )
    return state, header["description"]


def save_prompts(path: Path, deployed: State, personal: Mapping[int, State], model: Mapping[str, Any]) -> None:
    """Writes what a deployment needs: the deployed tensors by name, personal ones as ``personal/<client>/<name>``.

    Personal states on disk or at sites are not copied: the header names their files.
    """
    files = files_of(personal)
    kept = {} if files else _of_all_clients(personal, "personal")
    names = {"clients": sorted(personal), "files": files, **_where(personal)}
    header = {"kind": "prompts", "model": dict(model), **names}
    write_tensors(path, {**deployed, **kept}, header)


def load_deployed(path: Path) -> TrainedState:
    """Reads what is needed to evaluate a trained method, from prompts or a checkpoint.

    Raises:
        UserError: if the file is missing, damaged, or neither of these.
    """
    tensors, header = read_tensors(path)
    kind = check_header(path, header, "prompts", "checkpoint")
    personal = _by_client(path, "personal", header["clients"], tensors, header)
    model = _model(header)
    if kind == "checkpoint":
        return TrainedState(_deployed(tensors, header), personal, model)
    deployed = {name: value for name, value in tensors.items() if not name.startswith("personal/")}
    return TrainedState(deployed, personal, model)


def read_model(path: Path) -> dict[str, Any]:
    """Returns the description of the method that prompts or a checkpoint are of; no tensor is read.

    Raises:
        UserError: if the file is missing, damaged, or neither of these.
    """
    header = read_header(path)
    check_header(path, header, "prompts", "checkpoint")
    return _model(header)


def _model(header: Mapping[str, Any]) -> dict[str, Any]:
    model: dict[str, Any] = header["model"] if header["kind"] == "prompts" else header["description"]["model"]
    return model


def differences(saved: Any, now: Any, name: str = "") -> list[str]:
    """Lists where two descriptions differ, as ``name: was …, is …``.

    >>> differences({"model": {"length": 16}}, {"model": {"length": 8}})
    ['model.length: was 16, is 8']
    """
    if not (isinstance(saved, dict) and isinstance(now, dict)):
        return [] if saved == now else [f"{name}: was {_short(saved)}, is {_short(now)}"]
    different: list[str] = []
    for key in sorted(saved.keys() | now.keys()):
        inner = f"{name}.{key}" if name else str(key)
        different += differences(saved.get(key), now.get(key), inner)
    return different


def _are_same(one: State, other: State) -> bool:
    """Whether two states are the same tensors, and not only equal ones."""
    return one.keys() == other.keys() and all(other[name] is value for name, value in one.items())


def _deployed(tensors: State, header: Mapping[str, Any]) -> State:
    # They are often the shared ones themselves, which are then in the file once.
    deployed = strip_prefix(tensors, "shared") if header.get(DEPLOYS_SHARED) is True else {}
    return deployed | strip_prefix(tensors, "deployed")


def _where(*states: Mapping[int, State]) -> dict[str, bool]:
    """Returns the header's entry for states that are at the clients' sites."""
    return {AT_SITES: True} if are_at_sites(*states) else {}


def _of_all_clients(states: Mapping[int, State], group: str) -> State:
    """Returns the clients' tensors as ``<group>/<client>/<name>``."""
    tensors: State = {}
    for client, state in states.items():
        tensors |= add_prefix(state, f"{group}/{client}")
    return tensors


def _by_client(
    path: Path, group: str, clients: Sequence[int], tensors: State, header: Mapping[str, Any]
) -> Mapping[int, State]:
    """Returns the states of clients: the tensors themselves, or their files on disk."""
    files = header["files"]
    if files:
        run = path.parent.parent if header["kind"] == "checkpoint" else path.parent
        folder = None if header.get(AT_SITES) is True else run / FOLDER
        return StatesOnDisk(folder, group, {client: files[str(client)] for client in clients}).checked()
    states: dict[str, State] = {str(client): {} for client in clients}
    for name, value in strip_prefix(tensors, group).items():
        client, _, inner = name.partition("/")
        if client not in states or not inner:
            raise UserError(f"{path} has a tensor {group}/{name} of a client that it does not name.")
        states[client][inner] = value
    return {client: states[str(client)] for client in clients}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def split_states(callbacks: CallbackStates) -> tuple[dict[str, Any], State]:
    """Returns what JSON can hold, with null in the place of each tensor, and the tensors; both empty if there is none.

    >>> content, tensors = split_states(CallbackStates({"Stop": {"wait": 2, "best": Tensor([0.5])}}))
    >>> content["states"], tensors
    ({'Stop': {'wait': 2, 'best': None}}, {'["Stop", "best"]': tensor([0.5000])})
    """
    tensors: State = {}
    states = _without_tensors(callbacks.states, [], tensors)
    if not states and not callbacks.stopped_by:
        return {}, {}
    return {"states": states, "stopped_by": list(callbacks.stopped_by)}, tensors


def join_states(content: Any, tensors: Mapping[str, Tensor]) -> CallbackStates:
    """Joins what :func:`split_states` split.

    Args:
        content: of the header; None if it has nothing of callbacks.
        tensors: by their places.
    """
    if content is None:
        return CallbackStates()
    states: dict[str, Any] = content["states"]
    for name, tensor in tensors.items():
        *parents, last = json.loads(name)
        holder: Any = states
        for key in parents:
            holder = holder[key]
        holder[last] = tensor
    return CallbackStates(states, tuple(content["stopped_by"]))


def _without_tensors(value: Any, place: list[Any], tensors: State) -> Any:
    """Returns a value with None for each tensor in it, which is put among the tensors."""
    if isinstance(value, Tensor):
        tensors[json.dumps(place)] = value
        return None
    if isinstance(value, Mapping):
        return {key: _without_tensors(inner, [*place, key], tensors) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_tensors(inner, [*place, index], tensors) for index, inner in enumerate(value)]
    return value
