"""Plug-ins: classes and config folders that installed packages register by entry points."""

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
    """Find the entry points of classes by short name, without importing their packages."""
    installed = entry_points()  # read once for all groups
    return {entry.name: entry for group in CLASS_GROUPS for entry in installed.select(group=group)}


def import_plugins() -> None:
    """Import all registered classes, so that the command line accepts their short names; warn about failures."""
    for name, entry in registered_classes().items():
        try:
            entry.load()
        except Exception as error:  # another package may raise anything, and most commands do not need it
            log.warning("The plug-in %s could not import %s (%s).", package_name(entry), name, error)


def is_plugin_class(path: str) -> bool:
    """Whether a string is the short name or an import path of a registered class.

    Only this class is imported. The user has installed its package.
    """
    # A trained file may name the module that defines a class instead of the registered module.
    entry = registered_classes().get(path.rpartition(".")[2])
    if entry is None or path.partition(".")[0] not in (entry.name, entry.module.partition(".")[0]):
        return False
    kind: Any = entry.load()
    return path in (entry.name, f"{entry.module}.{entry.attr}", f"{kind.__module__}.{kind.__qualname__}")


def find_plugins(parts: Iterable[object]) -> dict[str, dict[str, Any]]:
    """Collect the plug-ins of some objects' classes, with version and classes, by package."""
    plugins: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(map(type, parts)):
        entry = registered_classes().get(kind.__name__)
        if entry is not None and entry.module.partition(".")[0] == kind.__module__.partition(".")[0]:
            version = "?" if entry.dist is None else entry.dist.version
            plugin = plugins.setdefault(package_name(entry), {"version": version, "classes": []})
            plugin["classes"].append(kind.__name__)
    return plugins


def package_name(entry: EntryPoint) -> str:
    """Get the name of an entry point's installed package."""
    return "?" if entry.dist is None else str(entry.dist.metadata["Name"])


def plugin_configs() -> dict[str, Path]:
    """Find the configs of all plug-ins by name, such as ``methods/tuned_promptfl``; UserError for a missing folder."""
    configs: dict[str, Path] = {}
    for entry in entry_points(group=CONFIGS_GROUP):
        package, *inner = entry.value.split(".")
        # This finds the folder of a package without running its code.
        spec = find_spec(package)
        parents = [] if spec is None else spec.submodule_search_locations or []
        folder = next((Path(parent, *inner) for parent in parents if Path(parent, *inner).is_dir()), None)
        if folder is None:
            raise UserError(
                f"The plug-in {package_name(entry)} registers configs in {entry.value}, but there is no such folder. "
                "Reinstall the plug-in."
            )
        configs |= {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")}
    return configs
