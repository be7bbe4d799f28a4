"""A working folder that the commands of all pages share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.helpers.desk import Desk


@pytest.fixture(scope="session")
def shared_desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """The working folder, with the runs of earlier tests."""
    from tests.helpers.desk import Desk

    desk = Desk(tmp_path_factory.mktemp("desk"))
    desk.lay_out()
    return desk


@pytest.fixture
def desk(home: Path, shared_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """The same folder as the current directory."""
    monkeypatch.chdir(shared_desk.folder)
    return shared_desk
