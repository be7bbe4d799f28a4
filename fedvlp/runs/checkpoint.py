"""What a run is continued or deployed from, in one safetensors file: tensors, and JSON in its header. No pickle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedvlp.core.state import CallbackStates, RunState, ServerState, State, add_prefix, strip_prefix
from fedvlp.runs.client_store import FOLDER, StatesOnDisk, are_at_sites, files_of
from fedvlp.utils.tensor_files import check_header, read_tensors, write_tensors


def save_checkpoint(path: Path, state: RunState, description: Mapping[str, Any]) -> None:
    """Write a checkpoint; a reader sees all of it or nothing."""
    server = state.server
    tensors = add_prefix(server.shared, "shared") | add_prefix(server.memory, "memory")
    # Stored once if they are the very same tensors; to compare large states would cost more than to write them.
    deploys_shared = server.shared.keys() == server.deployed.keys() and all(
        server.deployed[name] is value for name, value in server.shared.items()
    )
    if not deploys_shared:
        tensors |= add_prefix(server.deployed, "deployed")
    files = files_of(state.personal, state.optimizer_states)
    if not files:
        tensors |= _of_all_clients(state.personal, "personal")
        tensors |= _of_all_clients(state.optimizer_states, "optimizer")
    header = {
        "kind": "checkpoint",
        "round": server.round,
        "clients": sorted(state.personal),
        "optimizers": sorted(state.optimizer_states),
        "history": "\n".join(json.dumps(metrics) for metrics in state.history),
        "description": dict(description),
        "files": files,
        "deploys_shared": deploys_shared,
        "at_sites": are_at_sites(state.personal, state.optimizer_states),
        "callbacks": json.dumps([state.callbacks.states, state.callbacks.stopped_by], default=_tensor_to_json),
    }
    write_tensors(path, tensors, header)


def load_checkpoint(path: Path) -> tuple[RunState, dict[str, Any]]:
    """Read a run state, and the description of its run; raise UserError if the file is damaged or of another kind."""
    tensors, header = read_tensors(path)
    check_header(path, header, "checkpoint")
    states, stopped_by = json.loads(header["callbacks"], object_hook=_tensor_from_json)
    state = RunState(
        server=ServerState(
            shared=strip_prefix(tensors, "shared"),
            deployed=strip_prefix(tensors, "shared" if header["deploys_shared"] else "deployed"),
            memory=strip_prefix(tensors, "memory"),
            round=header["round"],
        ),
        personal=_by_client(path, "personal", tensors, header),
        history=tuple(json.loads(row) for row in header["history"].splitlines()),
        optimizer_states=_by_client(path, "optimizer", tensors, header),
        callbacks=CallbackStates(states, tuple(stopped_by)),
    )
    return state, header["description"]


def save_prompts(path: Path, deployed: State, personal: Mapping[int, State], model: Mapping[str, Any]) -> None:
    """Write what a deployment needs: the deployed tensors by name, personal ones as ``personal/<client>/<name>``.

    Personal states on disk or at sites are not copied: the header names their files.
    """
    files = files_of(personal)
    copied = {} if files else _of_all_clients(personal, "personal")
    header: dict[str, Any] = {"kind": "prompts", "model": dict(model), "clients": sorted(personal), "files": files}
    if are_at_sites(personal):  # simulations' files lack the entry
        header["at_sites"] = True
    write_tensors(path, {**deployed, **copied}, header)


def load_deployed(path: Path) -> tuple[State, Mapping[int, State], dict[str, Any]]:
    """Read the deployed tensors, each client's personal ones, and the method's description.

    Raises UserError if the file is missing, damaged, or neither prompts nor a checkpoint.
    """
    tensors, header = read_tensors(path)
    kind = check_header(path, header, "prompts", "checkpoint")
    personal = _by_client(path, "personal", tensors, header)
    if kind == "checkpoint":
        deployed = strip_prefix(tensors, "shared" if header["deploys_shared"] else "deployed")
        return deployed, personal, header["description"]["model"]
    deployed = {name: value for name, value in tensors.items() if not name.startswith("personal/")}
    return deployed, personal, header["model"]


def differences(saved: Any, now: Any, name: str = "") -> list[str]:
    """List where two descriptions differ, as ``name: was …, is …``.

    >>> differences({"model": {"length": 16}}, {"model": {"length": 8}})
    ['model.length: was 16, is 8']
    """
    if not (isinstance(saved, dict) and isinstance(now, dict)):
        # Of a long value, such as all class names, the first 200 characters do.
        return [] if saved == now else [f"{name}: was {saved!r:.200}, is {now!r:.200}"]
    different: list[str] = []
    for key in sorted(saved.keys() | now.keys()):
        inner = f"{name}.{key}" if name else str(key)
        different += differences(saved.get(key), now.get(key), inner)
    return different


def _of_all_clients(states: Mapping[int, State], group: str) -> State:
    """Return the clients' tensors as ``<group>/<client>/<name>``."""
    tensors: State = {}
    for client, state in states.items():
        tensors |= add_prefix(state, f"{group}/{client}")
    return tensors


def _by_client(path: Path, group: str, tensors: State, header: Mapping[str, Any]) -> Mapping[int, State]:
    """Return the states of clients: the tensors themselves, or their files on disk."""
    clients = header["clients" if group == "personal" else "optimizers"]
    files = header["files"]
    if files:
        run = path.parent.parent if header["kind"] == "checkpoint" else path.parent
        folder = None if header.get("at_sites") else run / FOLDER
        states = StatesOnDisk(folder, group, {client: files[str(client)] for client in clients})
        # Now, while an earlier checkpoint can be taken, and not when the client's turn comes.
        states.check()
        return states
    by_client: dict[str, State] = {str(client): {} for client in clients}
    for name, value in strip_prefix(tensors, group).items():
        client, _, inner = name.partition("/")
        by_client[client][inner] = value
    return {client: by_client[str(client)] for client in clients}


def _tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    # JSON keeps every digit of a number, so a tensor comes back to the bit.
    return {"tensor": tensor.tolist(), "dtype": str(tensor.dtype).removeprefix("torch.")}


def _tensor_from_json(value: dict[str, Any]) -> Any:
    is_tensor = value.keys() == {"tensor", "dtype"}
    return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"])) if is_tensor else value
