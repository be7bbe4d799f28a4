"""The rows: each file holds those of one kind of fault, and registers them when it is imported."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path


def load() -> None:
    """Imports every file beside this one."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem != "__init__":
            import_module(f"{__name__}.{path.stem}")
