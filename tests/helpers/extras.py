"""Leaves out modules whose packages an extra installs, where they are not installed.

An import that fails anywhere else must fail the run: with ``--doctest-ignore-import-errors`` pytest would take a test
file that cannot be imported for one without tests.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

NEEDED = {"sites/flower": "flwr"}
"""From folders of fedvlp to the packages that they import."""


class WithoutExtras:
    """A plugin of pytest that does not collect folders whose packages are missing.

    Args:
        root: The package's folder.
    """

    def __init__(self, root: Path) -> None:
        self._left_out = {root / folder for folder, package in NEEDED.items() if find_spec(package) is None}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leaves a folder out, or says nothing of it."""
        return True if collection_path in self._left_out else None
