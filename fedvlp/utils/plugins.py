"""What installed packages register for fedvlp: classes, and folders of configs, by the entry points in their metadata.

To read what is registered imports none of these packages. It is read once, when a name is not fedvlp's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from fedvlp.utils.errors import UserError

CLASS_GROUPS = ("fedvlp.methods", "fedvlp.data", "fedvlp.strategies")
CONFIGS_GROUP = "fedvlp.configs"


class Registration(NamedTuple):
    """What a package registers under a name.

    Attributes:
        group: of entry points, such as ``fedvlp.methods``.
        name: the short name.
        value: where it is: ``module:Class``, or ``package.folder`` for configs.
        package: the package's name, as it was installed.
        version: the package's version.
    """

    group: str
    name: str
    value: str
    package: str
    version: str

    @property
    def owner(self) -> str:
        """The package with its version, for messages."""
        return f"{self.package} {self.version}"

    @property
    def top(self) -> str:
        """The first part of the module's name."""
        return self.value.partition(":")[0].partition(".")[0].strip()

    def load(self) -> Any:
        """Imports what is registered, and returns it.

        Raises:
            UserError: if that fails; names the package.
        """
        try:
            return EntryPoint(self.name, self.value, self.group).load()
        except (Exception, SystemExit) as error:  # a stranger's module may raise anything
            raise UserError(
                f"The plug-in {self.owner} registers {self.name}, but importing {self.value} fails "
                f"({type(error).__name__}: {error}). Mend {self.package}, or uninstall it: pip uninstall {self.package}"
            ) from error


@cache
def registrations() -> tuple[Registration, ...]:
    """Returns all that installed packages register, in the order of their names."""
    return tuple(sorted(_read()))


def registered_as(name: str, groups: tuple[str, ...] = CLASS_GROUPS) -> Registration | None:
    """Returns what is registered under a name; None if nothing is.

    Raises:
        UserError: if several packages register it; names them.
    """
    found = [each for each in registrations() if each.name == name and each.group in groups]
    if len(found) > 1:
        owners = " and ".join(f"{each.owner} ({each.value})" for each in found)
        raise UserError(f"{name} is registered by {owners}. Uninstall one of them, or have it choose another name.")
    return found[0] if found else None


def plugin_config_names() -> list[str]:
    """Returns the names of the configs of all plug-ins, such as ``methods/tuned_promptfl``."""
    return sorted(name for name, _, _ in _configs())


def plugin_config(wanted: str) -> Path | None:
    """Returns the config of a plug-in by its name, with or without its folder; None if no plug-in has it.

    Raises:
        UserError: if several plug-ins have one of this name; names them.
    """
    found = [(owner, path) for name, owner, path in _configs() if wanted in (name, name.split("/")[-1])]
    if len({owner for owner, _ in found}) > 1:
        owners = " and ".join(f"{owner} ({path})" for owner, path in found)
        raise UserError(f"The config {wanted!r} is of {owners}. Pass the path of one of them.")
    return found[0][1] if found else None


def _read() -> Iterator[Registration]:
    for group in (*CLASS_GROUPS, CONFIGS_GROUP):
        for entry in entry_points(group=group):
            package = "?" if entry.dist is None else entry.dist.metadata["Name"]
            version = "?" if entry.dist is None else entry.dist.version
            yield Registration(group, entry.name, entry.value, package, version)


def _configs() -> Iterator[tuple[str, str, Path]]:
    """Yields the name of each config of a plug-in, its package with version, and the file."""
    for each in registrations():
        if each.group == CONFIGS_GROUP:
            folder = _folder_of(each)
            for path in sorted(folder.rglob("*.yaml")):
                yield path.relative_to(folder).with_suffix("").as_posix(), each.owner, path


def _folder_of(registration: Registration) -> Path:
    """Returns the folder that stands as ``package.folder`` in a registration, without importing the package.

    Raises:
        UserError: if there is none; names the package.
    """
    top, *others = registration.value.split(".")
    spec = find_spec(top) if top.isidentifier() else None
    places = [] if spec is None else spec.submodule_search_locations or []
    for place in places:
        folder = Path(place, *others)
        if folder.is_dir():
            return folder
    raise UserError(
        f"The plug-in {registration.owner} registers configs in {registration.value}, but there is no such folder. "
        f"Install {registration.package} again."
    )
