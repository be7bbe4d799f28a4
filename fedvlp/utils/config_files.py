"""Config files: bundled ones and those of plug-ins by name, and where they stand among the arguments of a command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedvlp.utils.errors import UserError
from fedvlp.utils.plugins import plugin_config, plugin_config_names
from fedvlp.utils.suggestions import did_you_mean
from fedvlp.utils.yaml_limits import check_yaml, read_yaml

CONFIG_OPTION = "--config="


def configs_folder() -> Path:
    """Returns the folder of the bundled configs: inside an installed package, beside it in a clone."""
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
        UserError: if there is none, with the nearest names, or several plug-ins have one.
    """
    if Path(name).is_file():
        return name
    wanted = name.removesuffix(".yaml").removeprefix("configs/")
    names = config_names()
    matches = [known for known in names if wanted in (known, known.split("/")[-1])]
    if matches:
        return str(configs_folder() / f"{matches[0]}.yaml")
    of_plugin = plugin_config(wanted)
    if of_plugin is not None:
        return str(of_plugin)
    names += plugin_config_names()
    hint = did_you_mean(wanted, [*names, *(known.split("/")[-1] for known in names)])
    raise UserError(f"No config {name!r}: neither a file nor one of {', '.join(names)}. {hint}".rstrip())


def names_a_method(path: str) -> bool:
    """Returns whether the config at a path says which method to use."""
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
        UserError: if there is no such config, or it or a value is nothing that a person writes.
    """
    found = []
    for argument in join_configs(arguments):
        if argument.startswith(CONFIG_OPTION):
            path = find_config(argument.removeprefix(CONFIG_OPTION))
            read_yaml(Path(path))
            found.append(CONFIG_OPTION + path)
        else:
            name, _, value = argument.rpartition("=")
            check_yaml(value, name or "A value")
            found.append(argument)
    return found
