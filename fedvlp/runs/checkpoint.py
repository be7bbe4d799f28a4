"""What a federation needs to go on, in one safetensors file: tensors, and JSON in its header. No pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedvlp.core.state import ServerState, State
from fedvlp.runs.client_store import FOLDER, StatesOnDisk, files_of
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import read_tensors, strip_prefix, write_tensors

Row = dict[str, Any]


@dataclass(frozen=True)
class RunState:
    """Where a federation stands after a round; nothing else is needed to go on.

    Attributes:
        server: the server's state; ``server.round`` rounds are finished.
        personal: what each client keeps, by client id.
        history: one row of metrics a finished round.
        optimizers: what the clients' optimizers go on from, by client id; empty where they start anew each round.
    """

    server: ServerState
    personal: Mapping[int, State] = field(default_factory=dict)
    history: tuple[Row, ...] = ()
    optimizers: Mapping[int, State] = field(default_factory=dict)


def save_checkpoint(path: Path, progress: RunState, description: Mapping[str, Any], history: str = "") -> None:
    """Writes a checkpoint; a reader sees all of it or nothing.

    Args:
        path: the file, in a folder of the run's folder.
        progress: what to go on from.
        description: of the run.
        history: the rows as JSON, one a line, where the caller has them; they are made here if not.
    """
    groups = {"shared": progress.server.shared, "deployed": progress.server.deployed, "memory": progress.server.memory}
    files = files_of(progress.personal, progress.optimizers)
    if not files:
        groups |= {f"personal/{client}": state for client, state in progress.personal.items()}
        groups |= {f"optimizer/{client}": state for client, state in progress.optimizers.items()}
    tensors = {f"{group}/{name}": value for group, state in groups.items() for name, value in state.items()}
    header = {
        "kind": "checkpoint",
        "round": progress.server.round,
        "clients": sorted(progress.personal),
        "optimizers": sorted(progress.optimizers),
        "history": history or "\n".join(map(json.dumps, progress.history)),
        "description": dict(description),
        "files": files,
    }
    write_tensors(path, tensors, header)


def load_checkpoint(path: Path) -> tuple[RunState, dict[str, Any]]:
    """Returns the progress and the description of the run that wrote it.

    Raises:
        UserError: if the file is missing, damaged, or not a checkpoint.
    """
    tensors, header = read_tensors(path)
    if header.get("kind") != "checkpoint":
        raise UserError(f"{path} holds {header.get('kind', 'unknown tensors')}, not a checkpoint to go on from.")
    server = ServerState(
        strip_prefix(tensors, "shared"),
        strip_prefix(tensors, "deployed"),
        strip_prefix(tensors, "memory"),
        round=header["round"],
    )
    history = header["history"]
    rows = tuple(json.loads(line) for line in history.splitlines()) if isinstance(history, str) else tuple(history)
    groups = {"personal": header["clients"], "optimizer": header.get("optimizers", [])}
    run = path.parent.parent
    states = {group: _of_clients(run, group, clients, tensors, header) for group, clients in groups.items()}
    return RunState(server, states["personal"], rows, states["optimizer"]), header["description"]


def save_prompts(path: Path, deployed: State, personal: Mapping[int, State], model: Mapping[str, Any]) -> None:
    """Writes what a deployment needs: the deployed tensors by name, personal ones as ``personal/<client>/<name>``.

    Personal states on disk stay where they are, and the header says in which files of the run's folder.
    """
    files = files_of(personal)
    inside = {} if files else personal
    kept = {f"personal/{client}/{name}": value for client, state in inside.items() for name, value in state.items()}
    header = {"kind": "prompts", "clients": sorted(personal), "model": dict(model), "files": files}
    write_tensors(path, {**deployed, **kept}, header)


def load_deployed(path: Path) -> tuple[State, Mapping[int, State], dict[str, Any]]:
    """Returns the deployed state, the personal states and the model's description, of prompts or a checkpoint."""
    tensors, header = read_tensors(path)
    is_checkpoint = header.get("kind") == "checkpoint"
    run = path.parent.parent if is_checkpoint else path.parent
    personal = _of_clients(run, "personal", header.get("clients", []), tensors, header)
    if is_checkpoint:
        return strip_prefix(tensors, "deployed"), personal, header["description"]["model"]
    if header.get("kind") != "prompts":
        raise UserError(f"{path} was not written by fedvlp. Pass a run's prompts.safetensors or a checkpoint.")
    return {k: v for k, v in tensors.items() if not k.startswith("personal/")}, personal, header["model"]


def _of_clients(
    run: Path, group: str, clients: Sequence[int], tensors: State, header: Mapping[str, Any]
) -> Mapping[int, State]:
    """Returns what stays on the clients: the tensors themselves, or where they are on disk."""
    files = header.get("files", {})
    if not files:
        return {client: strip_prefix(tensors, f"{group}/{client}") for client in clients}
    return StatesOnDisk(run / FOLDER, group, {client: files[str(client)] for client in clients}).checked()


def differences(saved: Any, now: Any, name: str = "") -> list[str]:
    """Lists where two descriptions differ, as ``name: was …, is …``.

    >>> differences({"model": {"length": 16}}, {"model": {"length": 8}})
    ['model.length: was 16, is 8']
    """
    if isinstance(saved, dict) and isinstance(now, dict):
        keys = sorted(saved.keys() | now.keys())
        return [line for k in keys for line in differences(saved.get(k), now.get(k), f"{name}.{k}" if name else str(k))]
    return [] if saved == now else [f"{name}: was {saved!r}, is {now!r}"]
