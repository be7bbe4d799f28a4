"""What installed packages register for fedvlp by entry points: classes, and folders of configs."""

import logging
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedvlp.utils.errors import UserError

CLASS_GROUPS = ("fedvlp.methods", "fedvlp.data", "fedvlp.strategies")
CONFIGS_GROUP = "fedvlp.configs"

log = logging.getLogger(__name__)


@cache
def registered_classes() -> dict[str, EntryPoint]:
    """Find the entry points of classes by their short names; import none of their packages."""
    installed = entry_points()  # read once for all groups
    return {entry.name: entry for group in CLASS_GROUPS for entry in installed.select(group=group)}


def import_plugins() -> None:
    """Import all registered classes, whose short names the command line then knows; warn of those that fail."""
    for name, entry in registered_classes().items():
        try:
            entry.load()
        except Exception as error:  # another package may raise anything, and most commands do not need it
            log.warning("The plug-in %s could not import %s (%s).", package_of(entry), name, error)


def is_plugin_class(path: str) -> bool:
    """Whether a string is a registered class: its short name, or a path under which its package has it.

    Only that class is imported, whose package the user has installed.
    """
    # A trained file may name a class by the module that defines it, and not by the one that is registered.
    entry = registered_classes().get(path.rpartition(".")[2])
    if entry is None or path.partition(".")[0] not in (entry.name, entry.module.partition(".")[0]):
        return False
    kind: Any = entry.load()
    return path in (entry.name, f"{entry.module}.{entry.attr}", f"{kind.__module__}.{kind.__qualname__}")


def plugins_of(parts: Iterable[object]) -> dict[str, dict[str, Any]]:
    """Return the version of each plug-in that some objects' classes come from, and these classes, by package."""
    plugins: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(map(type, parts)):
        entry = registered_classes().get(kind.__name__)
        if entry is not None and entry.module.partition(".")[0] == kind.__module__.partition(".")[0]:
            version = "?" if entry.dist is None else entry.dist.version
            plugin = plugins.setdefault(package_of(entry), {"version": version, "classes": []})
            plugin["classes"].append(kind.__name__)
    return plugins


def package_of(entry: EntryPoint) -> str:
    """Return the name of the installed package that an entry point is of."""
    return "?" if entry.dist is None else str(entry.dist.metadata["Name"])


def plugin_configs() -> dict[str, Path]:
    """Find all plug-ins' configs by names such as ``methods/tuned_promptfl``; UserError for a missing folder."""
    configs: dict[str, Path] = {}
    for entry in entry_points(group=CONFIGS_GROUP):
        package, *inner = entry.value.split(".")
        # The folder of a package is known without running its code.
        spec = find_spec(package)
        places = [] if spec is None else spec.submodule_search_locations or []
        folder = next((Path(place, *inner) for place in places if Path(place, *inner).is_dir()), None)
        if folder is None:
            raise UserError(
                f"The plug-in {package_of(entry)} registers configs in {entry.value}, but there is no such folder. "
                "Install it again."
            )
        configs |= {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")}
    return configs
