"""Config files: read, found by the names of bundled ones and of plug-ins', and as arguments of a command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedvlp.utils.errors import UserError, did_you_mean
from fedvlp.utils.files import check_inside
from fedvlp.utils.plugins import plugin_configs

CONFIG_OPTION = "--config="


def read_yaml(path: Path) -> Any:
    """Reads the content of a YAML file; raises UserError if it can't be read, or is no YAML."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{path} can't be read: {' '.join(str(error).split())}") from error


def read_run_config(path: Path, needs: Sequence[str] = ()) -> dict[str, Any]:
    """Reads the config in a run's folder, which may be a stranger's.

    Args:
        path: the config.
        needs: which of ``model`` and ``data`` must be in it.

    Returns:
        Its keys. ``trainer`` is a mapping, ``model`` and ``data`` name a class and its options, where they are there.

    Raises:
        UserError: if it is something else, or a link out of the folder.
    """
    check_inside(path, path.parent)
    content = read_yaml(path)
    if not isinstance(content, dict) or not isinstance(content.get("trainer", {}), dict):
        raise UserError(f"{path} is no config of a run: expected model, data and trainer with their options in it.")
    for name in sorted({"model", "data"} & {*content, *needs}):
        section = content.get(name)
        is_class = isinstance(section, dict) and isinstance(section.get("class_path"), str)
        if not is_class or not isinstance(section.get("init_args") or {}, dict):
            raise UserError(f"{path} is no config of a run: expected {name} with class_path and init_args in it.")
    return content


def configs_folder() -> Path:
    """Returns the folder of the bundled configs: inside an installed package, beside it in a clone."""
    # Wheels carry the configs inside the package; a clone has them beside it.
    package = Path(__file__).resolve().parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def config_names() -> list[str]:
    """Returns the names of the bundled configs, such as ``quickstart`` and ``methods/trip``."""
    folder = configs_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def find_config(name: str) -> str:
    """Returns the path of a config: a file, or a bundled config or a plug-in's by its name, with or without its folder.

    Raises:
        UserError: if there is none, with the nearest name.
    """
    if Path(name).is_file():
        return name
    wanted = name.removesuffix(".yaml").removeprefix("configs/")
    configs = {bundled: configs_folder() / f"{bundled}.yaml" for bundled in config_names()}
    # Bundled configs win, so that no plug-in changes what a documented command does.
    configs = {**plugin_configs(), **configs}
    for config, path in configs.items():
        if wanted in (config, config.split("/")[-1]):
            return str(path)
    hint = did_you_mean(wanted, [*configs, *(config.split("/")[-1] for config in configs)])
    raise UserError(f"No config {name!r}: neither a file nor one of {', '.join(sorted(configs))}. {hint}".rstrip())


def names_a_method(path: str) -> bool:
    """Whether the config at a path sets the method."""
    content = read_yaml(Path(path))
    model = content.get("model") if isinstance(content, dict) else None
    return isinstance(model, str) or (isinstance(model, dict) and "class_path" in model)


def join_configs(arguments: Sequence[str]) -> list[str]:
    """Returns command-line arguments with every config in the form ``--config=name``.

    >>> join_configs(["--config", "loggers/wandb", "--trainer.rounds=3"])
    ['--config=loggers/wandb', '--trainer.rounds=3']
    """
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] in ("--config", "-c"):
            joined[-1] = CONFIG_OPTION + argument
        else:
            joined.append(argument)
    return joined


def with_config_paths(arguments: Sequence[str]) -> list[str]:
    """Returns command-line arguments in which every config is ``--config=path``, the path of a file that can be read.

    Raises:
        UserError: if there is no such config, or it is no YAML.
    """
    joined = join_configs(arguments)
    for index, argument in enumerate(joined):
        if argument.startswith(CONFIG_OPTION):
            path = find_config(argument.removeprefix(CONFIG_OPTION))
            # Read here, so that a file that is no YAML is named before the parser wraps its error.
            read_yaml(Path(path))
            joined[index] = CONFIG_OPTION + path
    return joined
