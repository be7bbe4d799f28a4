"""Config files: read within bounds, found by the names of bundled ones and of plug-ins', as arguments of a command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedvlp.utils.errors import UserError, did_you_mean
from fedvlp.utils.files import MAX_DEPTH, check_inside, checked_values
from fedvlp.utils.plugins import plugin_configs

CONFIG_OPTION = "--config="
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # that of the command line's parser
MAX_CHARACTERS = 1_000_000  # of a config
SUFFIXES = (".yaml", ".yml", ".json")


def read_yaml(path: Path) -> Any:
    """Reads the content of a YAML file; raises UserError if it can't be read, is no YAML or beyond the bounds."""
    try:
        with open(path, encoding="utf-8") as file:
            content = parse_yaml(file.read(MAX_CHARACTERS + 1))
        checked_values(content)
        return content
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} can't be read: {' '.join(str(error).split())}") from error


def read_run_config(path: Path, needs: Sequence[str] = (), hint: str = "Pass the folder of a run.") -> dict[str, Any]:
    """Reads the config in a run's folder, which may be a stranger's.

    Args:
        path: the config.
        needs: which of ``model`` and ``data`` must name a class, and have its options in a mapping, if any.
        hint: what to do without them.

    Returns:
        Its keys; ``trainer``, if it is there, is a mapping.

    Raises:
        UserError: if it is something else, or a link out of the folder.
    """
    check_inside(path, path.parent)
    content = read_yaml(path)
    if not isinstance(content, dict) or not isinstance(content.get("trainer", {}), dict):
        raise UserError(f"{path} is no config of a run: expected model, data and trainer with their options in it.")
    for name in needs:
        section = content.get(name)
        if not (isinstance(section, dict) and isinstance(section.get("class_path"), str)):
            raise UserError(f"{path} has no {name}.class_path. {hint}")
        if not isinstance(section.get("init_args") or {}, dict):
            raise UserError(f"{path} has no options in {name}.init_args. {hint}")
    return content


def parse_yaml(text: str) -> Any:
    """Returns what YAML says, of a text that may be a stranger's; how long its values are is not looked at.

    Raises:
        UserError: if it is longer or deeper than any config, or has aliases or tags.
        YAMLError: if it is no YAML.
    """
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"Expected a config of at most {MAX_CHARACTERS:,} characters; it has more.")
    # Before values are made of it: nine lines of names and aliases make a billion, and wrong tags any error.
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        # Without a & in the text nothing has a name, and YAML refuses the alias itself.
        is_alias = isinstance(event, yaml.AliasEvent) and "&" in text
        if is_alias or depth > MAX_DEPTH or str(getattr(event, "tag", None)).startswith("tag:yaml.org"):
            raise UserError(f"Expected values without YAML's *aliases and !!tags, at most {MAX_DEPTH} levels deep.")
    return yaml.load(text, Loader=LOADER)


def configs_folder() -> Path:
    """Returns the folder of the bundled configs: inside an installed package, beside it in a clone."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def bundled_configs() -> dict[str, Path]:
    """Returns the bundled configs by their names, such as ``quickstart`` and ``methods/trip``, in their order."""
    folder = configs_folder()
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


def is_config_path(value: str) -> bool:
    """Whether a string can be a config's path; otherwise it is the name of a class, even if a file has that name."""
    return value.endswith(SUFFIXES) or os.path.basename(value) != value


def find_config(name: str) -> str:
    """Find a config: a file with a suffix, a bundled config or a plug-in's by its name, or any other file.

    Raises:
        UserError: If there is none, with the nearest name.
    """
    if name.endswith(SUFFIXES) and Path(name).is_file():
        return name
    wanted = name.removesuffix(".yaml").removeprefix("configs/")
    configs: dict[str, Path] = {}
    # Bundled configs win, so that no plug-in changes what a documented command does; to ask plug-ins takes longer.
    for known in (bundled_configs, plugin_configs):
        configs = {**known(), **configs}
        for config, path in configs.items():
            if wanted in (config, config.split("/")[-1]):
                return str(path)
    if Path(name).is_file():
        return name
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


def in_order(arguments: Sequence[str]) -> list[str]:
    """Returns options as the parser, for which later ones win, takes them: configs, then a class before its options.

    >>> in_order(["--data.root=photos", "--data", "DomainFolders", "--config=promptfl"])
    ['--config=promptfl', '--data', 'DomainFolders', '--data.root=photos']
    """
    # Each option with its values, which are the words up to the next one.
    options: list[list[str]] = []
    for word in arguments:
        if word.startswith("--") or not options:
            options.append([word])
        else:
            options[-1].append(word)
    names: list[str] = []
    ordered: list[list[str]] = []
    for option in options:
        name = option[0].partition("=")[0]
        own = [index for index, before in enumerate(names) if before.startswith(f"{name}.")]
        # A class that is given again, such as a second callback, is another one.
        place = own[0] if own and name not in names else len(names)
        names.insert(place, name)
        ordered.insert(place, option)
    ordered.sort(key=lambda option: not option[0].startswith(CONFIG_OPTION))
    return [word for option in ordered for word in option]


def with_config_paths(arguments: Sequence[str]) -> list[str]:
    """Returns options in order, in which every config is ``--config=path``, the path of a file that can be read.

    Raises:
        UserError: if there is no such config, or it is no YAML.
    """
    joined = in_order(join_configs(arguments))
    for index, argument in enumerate(joined):
        if argument.startswith(CONFIG_OPTION):
            path = find_config(argument.removeprefix(CONFIG_OPTION))
            # Read here, so that a file that is no YAML is named before the parser wraps its error.
            read_yaml(Path(path))
            joined[index] = CONFIG_OPTION + path
    return joined
