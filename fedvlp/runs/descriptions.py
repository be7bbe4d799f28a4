"""The description of a run, by which runs are compared, and the states that are taken up where it is the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import Phase
from fedvlp.core.protocols import FederatedData
from fedvlp.core.state import RunState, State
from fedvlp.runs.checkpoint import differences, load_checkpoint, load_deployed
from fedvlp.runs.client_store import are_at_sites
from fedvlp.runs.run_folder import find_checkpoints
from fedvlp.utils.digests import to_jsonable
from fedvlp.utils.errors import UserError


def run_name(model: FederatedModule, data: FederatedData) -> str:
    """Return ``<method>-<data>-<held-out domains>``, with ``-pool`` if centralised, safe as a folder's name."""
    held_out = "+".join(data.held_out_domains) or "none"
    name = f"{type(model).__name__}-{type(data).__name__}-{held_out}"
    name += "-pool" if any(client.is_pool for client in data.clients) else ""
    # Names of domains are those of folders on another disk, which may have signs that this one refuses.
    return "".join(letter if letter.isalnum() or letter in "-+_." else "_" for letter in name)


def describe_model(model: FederatedModule) -> dict[str, Any]:
    """Return the method's class, its options and the digest of its CLIP: all that a state must fit."""
    kind = type(model)
    return {
        "class_path": f"{kind.__module__}.{kind.__qualname__}",
        "init_args": model.describe(),
        "clip_fingerprint": model.clip.fingerprint(),
    }


def describe_phases(phases: Sequence[Phase]) -> dict[str, dict[str, Any]]:
    """Describe what each phase trains and sends, and its strategy with all options, by the phase's name."""
    described: dict[str, dict[str, Any]] = {}
    for phase in phases:
        names = {name: getattr(phase, name) for name in ("train", "upload", "download", "deploy")}
        described[phase.name] = {name: list(values) for name, values in names.items() if values is not None}
        of_class = {"class": type(phase.strategy).__qualname__}
        described[phase.name]["strategy"] = to_jsonable(phase.strategy) if is_dataclass(phase.strategy) else of_class
    return described


def describe_run(
    model: FederatedModule, data: FederatedData, phases: Sequence[Phase], training: Mapping[str, Any]
) -> dict[str, Any]:
    """Describe all that must be equal for a checkpoint to be resumed.

    ``training`` is the description of the federation's options; the options of loading images are added to it.
    """
    loading = {name: getattr(data, name, None) for name in ("batch_size", "augmentation")}
    return {
        "model": describe_model(model),
        "optimizer": describe_optimizer(model),
        "phases": describe_phases(phases),
        "protocol": data.protocol,
        "split": data.split_hash,
        "training": {**training, **loading},
    }


def describe_data(data: FederatedData) -> dict[str, Any]:
    """Return what a summary says of images and clients."""
    return {
        "data": data.describe(),
        "held_out": data.held_out_domains,
        "clients": {client.name: client.num_examples for client in data.clients},
    }


def describe_optimizer(model: FederatedModule) -> dict[str, Any] | None:
    """Return the optimizer's class and settings."""
    if model.make_optimizer is None:
        return None
    # Defaults are known only to an optimizer that exists, so one is made of a tensor for nothing.
    optimizer = model.make_optimizer([nn.Parameter()])
    plain = (int, float, bool, type(None))
    settings = optimizer.defaults.items()
    return {
        "class": type(optimizer).__name__,
        **{name: value if isinstance(value, plain) else repr(value) for name, value in settings},
    }


def resume(
    where: Path, description: Mapping[str, Any], say: Callable[[str], None], may_start_anew: bool = False
) -> tuple[RunState, Path] | None:
    """Load the newest readable run state, with its run folder; None if there is no checkpoint and need be none.

    ``where`` is a checkpoint, a run folder, or a folder of run folders; ``say`` prints a line for the user. Raises
    UserError if a checkpoint is missing, of another run, or damaged like all before it.
    """
    candidates = [where] if where.is_file() else find_checkpoints(where)
    for path in candidates:
        try:
            state, saved = load_checkpoint(path)
        except UserError as error:
            if path == candidates[-1]:
                raise
            say(f"{error} Going back to the checkpoint before it.")
            continue
        if wrong := differences(comparable(saved), comparable(description)):
            raise UserError(f"{path} is of another run, so it can't be resumed here: " + "; ".join(wrong))
        say(f"resuming from {path} after round {state.server.round}")
        return state, path.parent.parent
    if not may_start_anew:
        raise UserError(
            f"No checkpoint at {where}. Pass a checkpoint file, a run folder, or last, which starts from scratch where "
            "there is none."
        )
    say(f"no checkpoint under {where}: starting from scratch")
    return None


def load_trained(where: Path, model: FederatedModule) -> tuple[State, Mapping[int, State]]:
    """Load the deployed and personal states of a run folder, a checkpoint or ``prompts.safetensors``.

    Raises UserError if there is none, or it belongs to another method, CLIP or classes.
    """
    path = where
    if not where.is_file():
        # A folder that was pushed has no checkpoints.
        paths = find_checkpoints(where) or list(where.glob("prompts.safetensors"))
        if not paths:
            raise UserError(f"No trained state at {where}. Pass prompts.safetensors, a checkpoint or a run folder.")
        path = paths[0]
    deployed, personal, saved = load_deployed(path)
    if wrong := differences(comparable({"model": saved}), comparable({"model": describe_model(model)})):
        raise UserError(f"{path} belongs to another model: " + "; ".join(wrong))
    if model.personal and are_at_sites(personal):
        raise UserError(f"{path} is of a method that keeps tensors on each client, and they are at the clients' sites.")
    return deployed, personal


def load_deployed_to_all(where: Path, model: FederatedModule) -> State:
    """Return the deployed state of a method that has one model for all clients; raise UserError for other methods."""
    check_predicts(model)
    return load_trained(where, model)[0]


def check_predicts(model: FederatedModule) -> None:
    """Raise UserError if the method keeps tensors on each client, without which it can't predict."""
    if model.personal and model.held_out_evaluation != "shared":
        raise UserError(
            f"{type(model).__name__} keeps tensors on each client, so there is no one model to predict with."
        )


def comparable(description: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out where CLIP's weights came from: their digest says what they are."""
    model = dict(description["model"])
    model["init_args"] = {name: value for name, value in model["init_args"].items() if name != "clip"}
    return {**description, "model": model}
