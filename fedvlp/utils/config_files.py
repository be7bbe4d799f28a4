"""The configs that come with the package, found by name."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from fedvlp.utils.errors import UserError


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
    """Returns the path of a config: a file, or a bundled config by its name with or without its folder.

    Raises:
        UserError: if there is none, with the nearest names.
    """
    if Path(name).is_file():
        return name
    wanted = name.removesuffix(".yaml").removeprefix("configs/")
    names = config_names()
    matches = [known for known in names if wanted in (known, known.split("/")[-1])]
    if matches:
        return str(configs_folder() / f"{matches[0]}.yaml")
    near = get_close_matches(wanted, [*names, *(known.split("/")[-1] for known in names)], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UserError(f"No config {name!r}: neither a file nor one of {', '.join(names)}.{hint}")


def with_config_paths(arguments: Sequence[str]) -> list[str]:
    """Returns command-line arguments in which every ``--config`` is the path of a file."""
    found, takes_config = [], False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if takes_config:
            argument = find_config(argument)
        elif name == "--config" and equals:
            argument = f"--config={find_config(value)}"
        takes_config = argument in ("--config", "-c")
        found.append(argument)
    return found
