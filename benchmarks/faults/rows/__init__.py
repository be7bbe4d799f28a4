"""The rows: each file holds those of one kind of fault, and registers them when it is imported."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.faults.fault import FAULTS, Fault


def chosen(names: Sequence[str] | None = None) -> list[Fault]:
    """Returns the rows of these names, or all of them.

    Raises:
        KeyError: with a name that there is no row of.
    """
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem != "__init__":
            import_module(f"{__name__}.{path.stem}")
    for name in names or ():
        if name not in FAULTS:
            raise KeyError(name)
    return [row for row in FAULTS.values() if names is None or row.name in names]
