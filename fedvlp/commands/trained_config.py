"""The config of a trained file: its method, classes, domains and clients."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlp.runs.run_folder import find_run_folder, read_model
from fedvlp.runs.trusted_classes import check_classes
from fedvlp.utils.config_files import CONFIG_OPTION, option_values, read_run_config, split_options
from fedvlp.utils.errors import UserError

ALLOW_HELP = (
    "A module or class path that the trained file may use, besides fedvlp's own; can be repeated. Importing runs its "
    "code."
)


def trained_options(command: str, arguments: Sequence[str]) -> list[str]:
    """Read the config of a command's trained file, as an option; none if the arguments choose a method, or no file.

    Except for ``predict``, the config includes the run's data and precision, from the config next to the file. Raises
    UserError like :func:`trained_config`, or if images are needed and there is no config.
    """
    names = {name for name, _ in split_options(arguments)}
    runs = option_values(arguments, "--ckpt_path")
    if not runs or names & {"--help", "--config", "--model"}:
        return []
    if runs[-1] == "last":
        raise UserError(f"{command} accepts `last` only with --config. Name the run: fedvlp {command} RUN.")
    allow = option_values(arguments, "--allow")
    file = trained_file(runs[-1], command)
    config = trained_config(file, allow)
    if command != "predict":  # only predict uses placeholders without images
        from_run = run_config(file, allow, None if "--data" in names else "--data")
        if "--data" not in names and "data" not in from_run:
            raise UserError(f"{command} needs images, but there is no config next to {file}. Pass --data or --config.")
        config = {"model": config["model"], **from_run, "trainer": config["trainer"] | from_run["trainer"]}
    return [config_option(config)]


def trained_file(ckpt_path: str | None, command: str) -> Path:
    """Find the trained tensors of RUN: a file, or the newest run in a folder. Raise UserError for None or ``last``."""
    if ckpt_path in (None, "", "last"):
        raise UserError(
            f"{command} needs a run: fedvlp {command} RUN, a run folder, a prompts.safetensors or a checkpoint."
        )
    path = Path(ckpt_path)
    return find_run_folder(path) / "prompts.safetensors" if path.is_dir() else path


def trained_config(file: Path, allow: Sequence[str] = (), data_option: str | None = None) -> dict[str, Any]:
    """Make the config of a trained file's method, with the ``data`` of its run or only its class names.

    Raises UserError if the file is damaged, does not belong to a run, or names a class that is not allowed.

    Args:
        file: Prompts or a checkpoint.
        allow: Modules and class paths that the file may use in addition to fedvlp's own; no other class is imported.
        data_option: The option that replaces the run's images, for error messages; None if no images are needed.
    """
    # Imported late: the help of --data lists all imported data modules, and this one is not for users.
    from fedvlp.data.without_images import PlaceholderData

    model = read_model(file)
    # The file may be untrusted, and importing a class runs code.
    check_classes(file, model, allow)
    options = dict(model["init_args"])
    # The command line links these to data and federation, and rejects them as options of the method.
    data_options = {
        "classes": options.pop("class_names", None),
        "domains": options.pop("domains", None) or [],
        "num_clients": options.pop("num_clients", None),
    }
    rounds = options.pop("rounds", None)
    data = {"class_path": f"{PlaceholderData.__module__}.{PlaceholderData.__qualname__}", "init_args": data_options}
    return {
        "model": {"class_path": model["class_path"], "init_args": options},
        "data": data if data_option is None else run_config(file, allow, data_option).get("data", data),
        "trainer": {} if rounds is None else {"rounds": rounds},
    }


def run_config(file: Path, allow: Sequence[str], data_option: str | None) -> dict[str, Any]:
    """Read ``data``, and the precision in ``trainer``, from the config next to a trained file, if there is one.

    For arguments and errors see :func:`trained_config`.
    """
    path = find_run_folder(file) / "config.yaml"
    if not path.is_file():
        return {"trainer": {}}
    content = read_run_config(path, [] if data_option is None else ["data"], f"Pass {data_option} instead.")
    precision = content.get("trainer", {}).get("precision")
    config: dict[str, Any] = {"trainer": {} if precision is None else {"precision": precision}}
    if data_option is not None:
        config["data"] = content["data"]
        options = content["data"].get("init_args") or {}
        # An untrusted config must neither create folders nor start downloads.
        options.pop("download", None)
        cache_dir = options.get("cache_dir")
        if cache_dir is not None and not os.path.isdir(os.path.expanduser(f"{cache_dir}/features")):
            del options["cache_dir"]
    check_classes(path, config, allow)
    return config


def parse_kinds(what: str | None, choices: Collection[str]) -> list[str]:
    """Split the value of ``--what`` and drop duplicates; None means all. Raise UserError for an unknown name."""
    kinds = list(choices if what is None else dict.fromkeys(what.split(",")))
    if unknown := [kind for kind in kinds if kind not in choices]:
        raise UserError(f"--what: expected {', '.join(choices)} (comma-separated); got {', '.join(unknown)!r}.")
    return kinds


def config_option(config: Mapping[str, Any]) -> str:
    """Format a config as the argument ``--config`` with JSON, which the parser accepts instead of a path."""
    return CONFIG_OPTION + json.dumps(config)
