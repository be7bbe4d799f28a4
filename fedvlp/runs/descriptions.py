"""Descriptions of runs, and loading of states whose description matches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import Phase
from fedvlp.core.protocols import FederatedData
from fedvlp.core.roles import TEST_TIME
from fedvlp.core.state import RunState, State
from fedvlp.runs.checkpoint import differences, load_checkpoint, load_deployed
from fedvlp.runs.client_store import are_at_sites
from fedvlp.runs.run_folder import find_checkpoints, find_run_folder
from fedvlp.utils.digests import to_jsonable
from fedvlp.utils.errors import UserError


def run_name(model: FederatedModule, data: FederatedData) -> str:
    """Make the folder name ``<method>-<data>-<held-out domains>``, with ``-pool`` for centralised runs."""
    held_out = "+".join(data.held_out_domains) or "none"
    name = f"{type(model).__name__}-{type(data).__name__}-{held_out}"
    name += "-pool" if any(client.is_pool for client in data.clients) else ""
    # Domains are named after folders, perhaps with characters that this file system forbids.
    return "".join(letter if letter.isalnum() or letter in "-+_." else "_" for letter in name)


def describe_model(model: FederatedModule) -> dict[str, Any]:
    """Describe the method by class, options and digest of its CLIP, which must match a state."""
    kind = type(model)
    return {
        "class_path": f"{kind.__module__}.{kind.__qualname__}",
        "init_args": model.describe(),
        "clip_fingerprint": model.clip.fingerprint(),
        **({} if model.calibration_temperature == 1 else {"calibration_temperature": model.calibration_temperature}),
        **({"label_thresholds": list(model.label_thresholds)} if model.label_thresholds else {}),
    }


def describe_phases(phases: Sequence[Phase]) -> dict[str, dict[str, Any]]:
    """Describe, by phase, the trained and exchanged tensors, and the strategy with all options."""
    described: dict[str, dict[str, Any]] = {}
    for phase in phases:
        names = {name: getattr(phase, name) for name in ("train", "upload", "download", "deploy")}
        described[phase.name] = {name: list(values) for name, values in names.items() if values is not None}
        class_only = {"class": type(phase.strategy).__qualname__}
        described[phase.name]["strategy"] = to_jsonable(phase.strategy) if is_dataclass(phase.strategy) else class_only
    return described


def describe_run(
    model: FederatedModule, data: FederatedData, phases: Sequence[Phase], training: Mapping[str, Any]
) -> dict[str, Any]:
    """Describe all settings that must be equal to resume a checkpoint.

    ``training`` describes the options of the federation; the options of image loading are added.
    """
    loading = {name: getattr(data, name, None) for name in ("batch_size", "augmentation")}
    if getattr(data, "balance_classes", False):
        loading["balance_classes"] = True
    return {
        "model": describe_model(model),
        "optimizer": describe_optimizer(model),
        "phases": describe_phases(phases),
        "protocol": data.protocol,
        "split": data.split_hash,
        "training": {**training, **loading},
    }


def describe_data(model: FederatedModule, data: FederatedData) -> dict[str, Any]:
    """Describe images, protocol and clients for a summary."""
    described = data.describe()
    if model.needs_test_images:
        described["kind"] = f"{described.get('kind', '')}{TEST_TIME}"
    return {
        "data": described,
        "held_out": data.held_out_domains,
        "clients": {client.name: client.num_examples for client in data.clients},
    }


def describe_optimizer(model: FederatedModule) -> dict[str, Any] | None:
    """Describe the class and settings of the optimizer."""
    if model.make_optimizer is None:
        return None
    # Only an optimizer instance knows its defaults, so make one with an empty tensor.
    optimizer = model.make_optimizer([nn.Parameter()])
    plain = (int, float, bool, type(None))
    settings = optimizer.defaults.items()
    return {
        "class": type(optimizer).__name__,
        **{name: value if isinstance(value, plain) else repr(value) for name, value in settings},
    }


def resume(
    where: Path, description: Mapping[str, Any], print_line: Callable[[str], None], may_start_fresh: bool = False
) -> tuple[RunState, Path] | None:
    """Load the newest readable run state and its run folder; None if there is none and ``may_start_fresh``.

    ``where`` is a checkpoint, a run folder, or a folder of runs. Raises UserError if the checkpoint is missing or
    belongs to another run, or if all checkpoints are damaged.
    """
    candidates = [where] if where.is_file() else find_checkpoints(where)
    for path in candidates:
        try:
            state, saved = load_checkpoint(path)
        except UserError as error:
            if path == candidates[-1]:
                raise
            print_line(f"{error} Trying the previous checkpoint.")
            continue
        if wrong := differences(remove_clip_source(saved), remove_clip_source(description)):
            raise UserError(f"{path} belongs to a run with other settings and cannot be resumed: " + "; ".join(wrong))
        print_line(f"resuming from {path} after round {state.server.round}")
        return state, path.parent.parent
    if not may_start_fresh:
        raise UserError(f"No checkpoint at {where}. Pass one, a run folder, or last to start from scratch without one.")
    print_line(f"no checkpoint under {where}: starting from scratch")
    return None


def load_trained(where: Path, model: FederatedModule) -> tuple[State, Mapping[int, State]]:
    """Load deployed and personal states, and the model's temperature and thresholds, from a run, checkpoint or prompts.

    Raises UserError if there is none, or if it belongs to another method, CLIP or set of classes.
    """
    path = where
    if not where.is_file():
        # Only prompts store a temperature and thresholds.
        paths = list(find_run_folder(where).glob("prompts.safetensors")) or find_checkpoints(where)
        if not paths:
            raise UserError(f"No trained state at {where}. Pass prompts.safetensors, a checkpoint or a run folder.")
        path = paths[0]
    deployed, personal, saved = load_deployed(path)
    model.calibration_temperature = saved.get("calibration_temperature", 1.0)
    model.label_thresholds = tuple(saved.get("label_thresholds", ()))
    if wrong := differences(remove_clip_source({"model": saved}), remove_clip_source({"model": describe_model(model)})):
        raise UserError(f"{path} belongs to another model: " + "; ".join(wrong))
    if model.personal and are_at_sites(personal):
        raise UserError(f"{path} needs personal tensors, but they are stored at the clients' sites.")
    return deployed, personal


def load_deployed_to_all(where: Path, model: FederatedModule) -> State:
    """Load the deployed state of a method with one model for all clients; raise UserError for other methods."""
    check_predicts(model)
    return load_trained(where, model)[0]


def check_predicts(model: FederatedModule) -> None:
    """Raise UserError if the method cannot predict single images without personal tensors."""
    check_single_images(model)
    if model.personal and model.held_out_evaluation != "shared":
        raise UserError(f"{type(model).__name__} keeps tensors on each client, so no single model can predict.")


def check_single_images(model: FederatedModule) -> None:
    """Raise UserError if the method predicts only whole sets of images."""
    if model.needs_test_images:
        raise UserError(f"{type(model).__name__} adapts to all test images of a domain, not to single ones. Use test.")


def remove_clip_source(description: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the source of CLIP's weights from a description, since their digest identifies them."""
    model = dict(description["model"])
    model["init_args"] = {name: value for name, value in model["init_args"].items() if name != "clip"}
    return {**description, "model": model}
