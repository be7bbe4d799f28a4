"""The rows, with one file per kind of fault. Importing a file registers its rows."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.faults.fault import FAULTS, Fault


def chosen(names: Sequence[str] | None = None) -> list[Fault]:
    """List the rows with these names, or all rows.

    Raises:
        KeyError: With the name if there is no such row.
    """
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem != "__init__":
            import_module(f"{__name__}.{path.stem}")
    for name in names or ():
        if name not in FAULTS:
            raise KeyError(name)
    return [row for row in FAULTS.values() if names is None or row.name in names]
