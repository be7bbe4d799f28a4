"""What a federation needs to go on, in one safetensors file: tensors, and JSON in its header. No pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedvlp.errors import UserError
from fedvlp.state import ServerState, State

Row = dict[str, Any]


@dataclass(frozen=True)
class Progress:
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


def save_checkpoint(path: Path, progress: Progress, description: Mapping[str, Any]) -> None:
    """Writes a checkpoint; a reader sees all of it or nothing."""
    groups = {"shared": progress.server.shared, "deployed": progress.server.deployed, "memory": progress.server.memory}
    groups |= {f"personal/{client}": state for client, state in progress.personal.items()}
    groups |= {f"optimizer/{client}": state for client, state in progress.optimizers.items()}
    tensors = {f"{group}/{name}": value for group, state in groups.items() for name, value in state.items()}
    header = {
        "kind": "checkpoint",
        "round": progress.server.round,
        "clients": sorted(progress.personal),
        "optimizers": sorted(progress.optimizers),
        "history": list(progress.history),
        "description": dict(description),
    }
    write_tensors(path, tensors, header)


def load_checkpoint(path: Path) -> tuple[Progress, dict[str, Any]]:
    """Returns the progress and the description of the run that wrote it.

    Raises:
        UserError: if the file is missing, damaged, or not a checkpoint.
    """
    tensors, header = read_tensors(path)
    if header.get("kind") != "checkpoint":
        raise UserError(f"{path} holds {header.get('kind', 'unknown tensors')}, not a checkpoint to go on from.")
    server = ServerState(
        below(tensors, "shared"), below(tensors, "deployed"), below(tensors, "memory"), round=header["round"]
    )
    personal = {client: below(tensors, f"personal/{client}") for client in header["clients"]}
    optimizers = {client: below(tensors, f"optimizer/{client}") for client in header.get("optimizers", [])}
    return Progress(server, personal, tuple(header["history"]), optimizers), header["description"]


def save_prompts(path: Path, deployed: State, personal: Mapping[int, State], model: Mapping[str, Any]) -> None:
    """Writes what a deployment needs: the deployed tensors by name, personal ones as ``personal/<client>/<name>``."""
    kept = {f"personal/{client}/{name}": value for client, state in personal.items() for name, value in state.items()}
    write_tensors(path, {**deployed, **kept}, {"kind": "prompts", "clients": sorted(personal), "model": dict(model)})


def load_deployed(path: Path) -> tuple[State, dict[int, State], dict[str, Any]]:
    """Returns the deployed state, the personal states and the model's description, of prompts or a checkpoint."""
    tensors, header = read_tensors(path)
    personal = {client: below(tensors, f"personal/{client}") for client in header.get("clients", [])}
    if header.get("kind") == "checkpoint":
        return below(tensors, "deployed"), personal, header["description"]["model"]
    if header.get("kind") != "prompts":
        raise UserError(f"{path} was not written by fedvlp. Pass a run's prompts.safetensors or a checkpoint.")
    return {k: v for k, v in tensors.items() if not k.startswith("personal/")}, personal, header["model"]


def below(tensors: State, group: str) -> State:
    """Returns the tensors under ``group/``, without that prefix."""
    return {name[len(group) + 1 :]: value for name, value in tensors.items() if name.startswith(group + "/")}


def write_tensors(path: Path, tensors: State, header: Mapping[str, Any]) -> None:
    """Writes tensors and a JSON header to a safetensors file, in one step that can't be seen half done.

    Equal content gives equal bytes: the header is a single sorted entry.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        contiguous = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
        save_file(contiguous, temporary, metadata={"fedvlp": json.dumps(header, sort_keys=True, ensure_ascii=False)})
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_tensors(path: Path) -> tuple[State, dict[str, Any]]:
    """Returns the tensors and the JSON header of a file that :func:`write_tensors` wrote.

    Raises:
        UserError: if the file is missing or damaged; nothing is ever unpickled.
    """
    if not path.is_file():
        raise UserError(f"No file {path}. Pass a run's checkpoints/*.safetensors or prompts.safetensors.")
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("fedvlp", "{}"))
            return {name: file.get_tensor(name).clone() for name in file.keys()}, header  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is damaged or no safetensors file ({error}). Use an earlier checkpoint.") from error


def differences(saved: Any, now: Any, name: str = "") -> list[str]:
    """Lists where two descriptions differ, as ``name: was …, is …``.

    >>> differences({"model": {"length": 16}}, {"model": {"length": 8}})
    ['model.length: was 16, is 8']
    """
    if isinstance(saved, dict) and isinstance(now, dict):
        keys = sorted(saved.keys() | now.keys())
        return [line for k in keys for line in differences(saved.get(k), now.get(k), f"{name}.{k}" if name else str(k))]
    return [] if saved == now else [f"{name}: was {saved!r}, is {now!r}"]
