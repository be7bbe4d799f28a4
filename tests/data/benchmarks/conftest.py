"""Trees of the published data sets, each written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.benchmark_trees import LAYOUTS


@pytest.fixture(scope="session")
def lay_out(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a function from the name of a layout to a tree that is laid out so; the tree is written once."""
    written: dict[str, Path] = {}

    def write(layout: str) -> Path:
        if layout not in written:
            written[layout] = LAYOUTS[layout][1](tmp_path_factory.mktemp("layout"))
        return written[layout]

    return write
