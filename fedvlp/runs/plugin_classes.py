"""The classes of plug-ins, by short name: found where a name is not fedvlp's own, imported only when they are named."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import fedvlp
from fedvlp.core.aggregation import Aggregator
from fedvlp.core.module import FederatedModule
from fedvlp.core.strategies import Strategy
from fedvlp.utils.errors import UserError
from fedvlp.utils.plugins import CLASS_GROUPS, Registration, registered_as, registrations
from fedvlp.version import __version__


def plugin_names() -> list[str]:
    """Returns the short names that plug-ins register; imports none of them."""
    return [each.name for each in registrations() if each.group in CLASS_GROUPS]


def plugin_class(name: str) -> type | None:
    """Returns the class that a plug-in registers under a short name; None if none does.

    Raises:
        UserError: if two packages register it, its package takes a name of fedvlp's own, it can't be imported, or it is
            not what its group is for.
    """
    registration = registered_as(name)
    return None if registration is None else _checked(registration)


def is_plugin_class(path: str) -> bool:
    """Whether a text is a class that a plug-in registers: its short name, or a path that leads to this very class.

    That class is imported if the text may be its path, and nothing else.

    Raises:
        UserError: as :func:`plugin_class`.
    """
    module, _, name = path.rpartition(".")
    registration = registered_as(name)
    if registration is None or module.partition(".")[0] not in ("", registration.top):
        return False
    kind = _checked(registration)
    return not module or getattr(sys.modules.get(module), name, None) is kind


def import_named(value: Any) -> None:
    """Imports the plug-ins' classes that values of a config name, at any depth; their short names are then known.

    Raises:
        UserError: as :func:`plugin_class`.
    """
    for path in _class_paths(value):
        if not path.startswith("fedvlp.") and path not in fedvlp.__all__:
            is_plugin_class(path)


def import_all() -> list[str]:
    """Imports all classes that plug-ins register, and returns what is wrong with those that could not be."""
    problems = []
    for name in dict.fromkeys(plugin_names()):
        try:
            plugin_class(name)
        except UserError as error:
            problems.append(str(error))
    return problems


def plugins_of(parts: Iterable[object]) -> dict[str, dict[str, Any]]:
    """Returns the version of each plug-in that some objects' classes come from, and these classes, by package."""
    found: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(map(type, parts)):
        registration = _registration_of(kind)
        if registration is not None:
            package = found.setdefault(registration.package, {"version": registration.version, "classes": []})
            package["classes"].append(kind.__name__)
    return found


def _registration_of(kind: type) -> Registration | None:
    top = kind.__module__.partition(".")[0]
    if top == "fedvlp":
        return None
    return next((each for each in registrations() if (each.name, each.top) == (kind.__name__, top)), None)


def _checked(registration: Registration) -> type:
    """Returns the class of a registration, which must be what it says; its package may take no name of fedvlp's own."""
    for each in registrations():
        if each.package == registration.package and each.group in CLASS_GROUPS and each.name in fedvlp.__all__:
            raise UserError(
                f"The plug-in {each.owner} registers {each.name} ({each.value}), a name of fedvlp {__version__}'s own "
                f"{_own_path(each.name)}. Have {each.package} choose another name, or uninstall it."
            )
    kind = registration.load()
    wanted = _kinds(registration.group)
    if not isinstance(kind, type) or not issubclass(kind, wanted):
        expected = " or ".join(each.__name__ for each in wanted)
        raise UserError(
            f"The plug-in {registration.owner} registers {registration.value} in the group {registration.group}, "
            f"where a subclass of {expected} is expected. Register it in its own group, or leave it out."
        )
    if kind.__name__ != registration.name:
        raise UserError(
            f"The plug-in {registration.owner} registers the class {kind.__name__} as {registration.name}. A short "
            "name is the class's own: give both the same."
        )
    return kind


def _kinds(group: str) -> tuple[type, ...]:
    if group == "fedvlp.methods":
        return (FederatedModule,)
    return (fedvlp.FederatedDataModule,) if group == "fedvlp.data" else (Aggregator, Strategy)


def _own_path(name: str) -> str:
    own = getattr(fedvlp, name)
    return f"{own.__module__}.{name}"


def _class_paths(value: Any) -> Iterator[str]:
    """Yields every text, at any depth, that is written as the name or the path of a class."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _class_paths(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _class_paths(inner)
    elif isinstance(value, str):
        parts = value.split(".")
        if all(part.isidentifier() for part in parts) and parts[-1][0].isupper():
            yield value
