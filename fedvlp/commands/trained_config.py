"""The config of a trained file: which method it is of, and with which classes, domains and clients it was trained."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlp.runs.run_folder import read_model, run_of
from fedvlp.runs.trusted_classes import check_classes
from fedvlp.utils.config_files import CONFIG_OPTION, read_run_config, split_options, values_of
from fedvlp.utils.errors import UserError

ALLOW_HELP = (
    "A module or the path of a class that the trained file may name, besides fedvlp's own; may be given several times. "
    "To import it runs its code."
)


def config_of_command(command: str, arguments: Sequence[str]) -> dict[str, Any] | None:
    """Read the config of the trained file among a command's arguments; None if they name a method, or no file.

    All commands but ``predict`` get the data and the precision of the run as well, from the config next to the file.
    Raises UserError as :func:`trained_config`, or if images are needed and there is no config.
    """
    given = {name for name, _ in split_options(arguments)}
    runs = values_of(arguments, "--ckpt_path")
    if not runs or given & {"--help", "--config", "--model"}:
        return None
    if runs[-1] == "last":
        raise UserError(f"{command} takes no `last` without --config. Name the run: fedvlp {command} RUN.")
    allow = values_of(arguments, "--allow")
    file = trained_file(runs[-1], command)
    config = trained_config(file, allow)
    if command == "predict":
        return config
    of_run = config_of_run(file, allow, None if "--data" in given else "--data")
    config["trainer"] |= of_run["trainer"]
    del config["data"]  # predict needs these facts, but no images
    if "--data" not in given:
        if "data" not in of_run:
            raise UserError(f"{command} needs images, and no config beside {file} names them. Pass --data or --config.")
        config["data"] = of_run["data"]
    return config


def trained_file(ckpt_path: str | None, command: str) -> Path:
    """Find the trained tensors that a command's RUN means; raise UserError without RUN, or for ``last``."""
    if ckpt_path in (None, "", "last"):
        raise UserError(
            f"{command} needs a run: fedvlp {command} RUN, its folder, its prompts.safetensors or a checkpoint."
        )
    return file_of_run(Path(ckpt_path))


def file_of_run(where: Path) -> Path:
    """Find the trained tensors of a run's folder, or of the newest run in a folder; a file itself."""
    return run_of(where) / "prompts.safetensors" if where.is_dir() else where


def trained_config(where: Path, allow: Sequence[str] = (), instead: str | None = None) -> dict[str, Any]:
    """Make a config of a trained file's method; its ``data`` are those of its run, or only its classes.

    Raises UserError if the file is damaged or not of a run, or names a class that is not allowed.

    Args:
        where: Prompts or a checkpoint.
        allow: Modules and paths of classes that the file may name, besides fedvlp's own; no other class is imported.
        instead: The option that replaces the run's images, for a message; None if no ``data`` are needed.
    """
    # Imported late: the help of --data lists every data module that was imported, and this one is not for users.
    from fedvlp.data.without_images import PredictionData

    model = read_model(where)
    # The file may be a stranger's, and to import a class that it names runs code.
    check_classes(where, model, allow)
    options = dict(model["init_args"])
    # The command line takes these from data and federation, so the method's own would be refused.
    of_data = {
        "class_names": options.pop("class_names", None),
        "source_domains": options.pop("domains", None),
        "num_clients": options.pop("num_clients", None),
    }
    rounds = options.pop("rounds", None)
    data = {"class_path": f"{PredictionData.__module__}.{PredictionData.__qualname__}", "init_args": of_data}
    return {
        "model": {"class_path": model["class_path"], "init_args": options},
        "data": data if instead is None else config_of_run(where, allow, instead).get("data", data),
        "trainer": {} if rounds is None else {"rounds": rounds},
    }


def config_of_run(file: Path, allow: Sequence[str], instead: str | None) -> dict[str, Any]:
    """Read ``data``, and ``trainer`` with the precision, from the config next to a trained file, if there is one.

    Arguments and errors are those of :func:`trained_config`.
    """
    path = run_of(file) / "config.yaml"
    if not path.is_file():
        return {"trainer": {}}
    needs = [] if instead is None else ["data"]
    content = read_run_config(path, needs, f"Pass {instead}, so that it is not needed.")
    precision = content.get("trainer", {}).get("precision")
    config: dict[str, Any] = {"trainer": {} if precision is None else {"precision": precision}}
    for name in needs:
        config[name] = content[name]
        options = content[name].get("init_args") or {}
        # A stranger's config decides neither where a folder is made nor what is downloaded.
        options.pop("download", None)
        cache_dir = options.get("cache_dir")
        if cache_dir is not None and not os.path.isdir(os.path.expanduser(f"{cache_dir}/features")):
            del options["cache_dir"]
    check_classes(path, config, allow)
    return config


def chosen_kinds(what: str, choices: Collection[str]) -> list[str]:
    """Split the value of ``--what``, each name once; raise UserError for an unknown one."""
    kinds = list(dict.fromkeys(what.split(",")))
    if unknown := [kind for kind in kinds if kind not in choices]:
        raise UserError(f"Expected --what of {', '.join(choices)}, with commas between; got {', '.join(unknown)!r}.")
    return kinds


def config_option(config: Mapping[str, Any]) -> str:
    """Return the argument ``--config`` with a config's content, which the parser accepts in place of a path."""
    return CONFIG_OPTION + json.dumps(config)
