"""Config files: read within limits, find by name, and convert to and from options of a command."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedvlp.utils.errors import UserError, did_you_mean
from fedvlp.utils.files import MAX_DEPTH, check_inside, checked_values
from fedvlp.utils.plugins import plugin_configs

CONFIG_OPTION = "--config="
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same as the command line's parser
MAX_CHARACTERS = 1_000_000  # per config
SUFFIXES = (".yaml", ".yml", ".json")


def read_yaml(path: Path) -> Any:
    """Read a YAML file; raise UserError if it can't be read, is not YAML or exceeds the limits."""
    try:
        with open(path, encoding="utf-8") as file:
            content = parse_yaml(file.read(MAX_CHARACTERS + 1))
        checked_values(content)
        return content
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} can't be read: {' '.join(str(error).split())}") from error


def read_run_config(path: Path, needs: Sequence[str] = (), hint: str = "Pass the folder of a run.") -> dict[str, Any]:
    """Read the config in a run folder, which may be untrusted; raise UserError if it is not a run's config.

    Args:
        path: The config.
        needs: Sections that must name a class, ``model`` or ``data`` or both.
        hint: What to do if they are missing.
    """
    check_inside(path, path.parent)
    content = read_yaml(path)
    if not isinstance(content, dict) or not isinstance(content.get("trainer", {}), dict):
        raise UserError(f"{path} is not the config of a run: expected the sections model, data and trainer. {hint}")
    for name in needs:
        section = content.get(name)
        if not (isinstance(section, dict) and isinstance(section.get("class_path"), str)):
            raise UserError(f"{path} has no {name}.class_path. {hint}")
        if not isinstance(section.get("init_args") or {}, dict):
            raise UserError(f"{path} has no options in {name}.init_args. {hint}")
    return content


def parse_yaml(text: str) -> Any:
    """Parse untrusted YAML, without checking the length of its values.

    Raises UserError for text that is longer or deeper than any config or has aliases or tags, and YAMLError for invalid
    YAML.
    """
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"Expected a config of at most {MAX_CHARACTERS:,} characters; it has more.")
    # Checked before values are built: nine lines of aliases can make a billion values, and tags raise any error.
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        # Without an anchor (&) in the text YAML rejects the alias itself.
        is_alias = isinstance(event, yaml.AliasEvent) and "&" in text
        if is_alias or depth > MAX_DEPTH or str(getattr(event, "tag", None)).startswith("tag:yaml.org"):
            raise UserError(f"Expected values without YAML's *aliases and !!tags, at most {MAX_DEPTH} levels deep.")
    return yaml.load(text, Loader=LOADER)


def configs_folder() -> Path:
    """Find the folder of the bundled configs: inside an installed package, next to it in a clone."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def bundled_configs() -> dict[str, Path]:
    """List the bundled configs by name, such as ``quickstart`` and ``methods/trip``, in sorted order."""
    folder = configs_folder()
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


def config_title(path: Path) -> str:
    """Get the name of a bundled config, such as ``methods/trip``; the stem of any other file."""
    names = {file: name for name, file in bundled_configs().items()}
    return names.get(path.resolve(), path.stem)


def find_config(name: str) -> str:
    """Find a config: a file with a suffix, the name of a bundled or a plug-in's config, or any other file."""
    if name.endswith(SUFFIXES) and Path(name).is_file():
        return name
    short_name = name.removesuffix(".yaml").removeprefix("configs/")
    configs: dict[str, Path] = {}
    # Bundled configs come first, because they are faster to list and plug-ins must not change documented commands.
    for list_configs in (bundled_configs, plugin_configs):
        configs = {**list_configs(), **configs}
        for config, path in configs.items():
            if short_name in (config, config.split("/")[-1]):
                return str(path)
    if Path(name).is_file():
        return name
    hint = did_you_mean(short_name, [*configs, *(config.split("/")[-1] for config in configs)])
    choices = f"Choose a file, or one of {', '.join(sorted(configs))}."
    raise UserError(f"There is no config {name!r}. {hint or choices}")


def names_a_method(path: str) -> bool:
    """Whether the config at a path sets the method."""
    content = read_yaml(Path(path))
    model = content.get("model") if isinstance(content, dict) else None
    return isinstance(model, str) or (isinstance(model, dict) and "class_path" in model)


def option_values(words: Sequence[str], name: str) -> list[str]:
    """List all values of an option in a command line."""
    return [value for option, values in split_options(words) if option == name for value in values]


def split_options(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Split a command line into options, each with its values; words before the first option have an empty name.

    >>> split_options(["fit", "-c", "trip", "--images", "a", "b", "--trainer.rounds=3"])
    [('', ['fit']), ('--config', ['trip']), ('--images', ['a', 'b']), ('--trainer.rounds', ['3'])]
    """
    options: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--") or word in ("-c", "-h"):
            name, equals, value = word.partition("=")
            options.append(({"-c": "--config", "-h": "--help"}.get(name, name), [value] if equals else []))
        elif options:
            options[-1][1].append(word)
        else:
            options.append(("", [word]))
    return options


def sort_options(words: Sequence[str]) -> list[str]:
    """Put configs first, and a class before its options, because the parser lets later options override earlier ones.

    >>> sort_options(["--data.root=photos", "--data", "DomainFolders", "--config", "promptfl"])
    ['--config=promptfl', '--data=DomainFolders', '--data.root=photos']
    """
    options: list[tuple[str, list[str]]] = []
    for name, values in split_options(words):
        names = [earlier for earlier, _ in options]
        own = [index for index, earlier in enumerate(names) if earlier.startswith(f"{name}.")]
        # A repeated option, such as a second callback, keeps its position.
        options.insert(own[0] if own and name not in names else len(names), (name, values))
    options.sort(key=lambda option: {"": 0, "--config": 1}.get(option[0], 2))
    ordered: list[str] = []
    for name, values in options:
        if name and len(values) == 1:
            ordered.append(f"{name}={values[0]}")
        else:
            ordered += [name, *values] if name else values
    return ordered
