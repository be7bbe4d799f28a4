"""Checkpoints and prompts: safetensors files with tensors, and JSON in the header. No pickle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedvlp.core.state import CallbackStates, RunState, ServerState, State, add_prefix, strip_prefix
from fedvlp.runs.client_store import FOLDER, StatesOnDisk, are_at_sites, state_files
from fedvlp.utils.tensor_files import check_header, read_tensors, write_tensors


def save_checkpoint(path: Path, state: RunState, description: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically."""
    server = state.server
    tensors = add_prefix(server.shared, "shared") | add_prefix(server.memory, "memory")
    # Store identical tensor objects once. Comparing the values of large states would cost more than writing them.
    is_same = [server.deployed.get(name) is value for name, value in server.shared.items()]
    deploys_shared = all(is_same) and len(is_same) == len(server.deployed)
    if not deploys_shared:
        tensors |= add_prefix(server.deployed, "deployed")
    files = state_files(state.personal, state.optimizer_states)
    if not files:
        tensors |= _merge_clients(state.personal, "personal")
        tensors |= _merge_clients(state.optimizer_states, "optimizer")
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
    """Read a run state and the description of its run; raise UserError if the file is damaged or no checkpoint."""
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
        personal=_split_clients(path, "personal", tensors, header),
        history=tuple(json.loads(row) for row in header["history"].splitlines()),
        optimizer_states=_split_clients(path, "optimizer", tensors, header),
        callbacks=CallbackStates(states, tuple(stopped_by)),
    )
    return state, header["description"]


def save_prompts(path: Path, deployed: State, personal: Mapping[int, State], model: Mapping[str, Any]) -> None:
    """Write the tensors for deployment, with personal tensors as ``personal/<client>/<name>``.

    Personal states on disk or at sites are not copied; the header lists their files.
    """
    files = state_files(personal)
    copied = {} if files else _merge_clients(personal, "personal")
    header: dict[str, Any] = {"kind": "prompts", "model": dict(model), "clients": sorted(personal), "files": files}
    if are_at_sites(personal):  # files of simulations lack the entry
        header["at_sites"] = True
    write_tensors(path, {**deployed, **copied}, header)


def load_deployed(path: Path) -> tuple[State, Mapping[int, State], dict[str, Any]]:
    """Read the deployed tensors, the personal tensors of each client, and the description of the method.

    Raises UserError if the file is missing, damaged, or neither prompts nor a checkpoint.
    """
    tensors, header = read_tensors(path)
    kind = check_header(path, header, "prompts", "checkpoint")
    personal = _split_clients(path, "personal", tensors, header)
    if kind == "checkpoint":
        deployed = strip_prefix(tensors, "shared" if header["deploys_shared"] else "deployed")
        return deployed, personal, header["description"]["model"]
    deployed = {name: value for name, value in tensors.items() if not name.startswith("personal/")}
    return deployed, personal, header["model"]


def differences(saved: Any, now: Any, name: str = "") -> list[str]:
    """List the differences between two descriptions, as ``name: was …, is …``.

    >>> differences({"model": {"length": 16}}, {"model": {"length": 8}})
    ['model.length: was 16, is 8']
    """
    if not (isinstance(saved, dict) and isinstance(now, dict)):
        # 200 characters suffice for a long value, such as all class names.
        return [] if saved == now else [f"{name}: was {saved!r:.200}, is {now!r:.200}"]
    different: list[str] = []
    for key in sorted(saved.keys() | now.keys()):
        inner = f"{name}.{key}" if name else str(key)
        different += differences(saved.get(key), now.get(key), inner)
    return different


def _merge_clients(states: Mapping[int, State], group: str) -> State:
    tensors: State = {}
    for client, state in states.items():
        tensors |= add_prefix(state, f"{group}/{client}")
    return tensors


def _split_clients(path: Path, group: str, tensors: State, header: Mapping[str, Any]) -> Mapping[int, State]:
    """Split tensors by client, or list the files if states are on disk."""
    clients = header["clients" if group == "personal" else "optimizers"]
    files = header["files"]
    if files:
        run = path.parent.parent if header["kind"] == "checkpoint" else path.parent
        folder = None if header.get("at_sites") else run / FOLDER
        states = StatesOnDisk(folder, group, {client: files[str(client)] for client in clients})
        # Check now, while the run can still resume from an earlier checkpoint.
        states.check()
        return states
    by_client: dict[str, State] = {str(client): {} for client in clients}
    for name, value in strip_prefix(tensors, group).items():
        client, _, inner = name.partition("/")
        by_client[client][inner] = value
    return {client: by_client[str(client)] for client in clients}


def _tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    # JSON keeps all digits, so the tensor is restored bit by bit.
    return {"tensor": tensor.tolist(), "dtype": str(tensor.dtype).removeprefix("torch.")}


def _tensor_from_json(value: dict[str, Any]) -> Any:
    is_tensor = value.keys() == {"tensor", "dtype"}
    return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"])) if is_tensor else value
