"""A hub of the test's own, and downloads from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedvlp.data.benchmarks import download as package
from fedvlp.data.catalog import DESCRIPTIONS, Description
from tests.helpers.hub import Hub, use_hub
from tests.helpers.hub_data_sets import as_uploaded, upload


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty hub that the client asks."""
    with Hub().serving() as hub:
        use_hub(hub, monkeypatch)
        yield hub


@pytest.fixture
def download(hub: Hub, tmp_path: Path) -> Callable[..., list[str]]:
    """Returns a function that downloads a data set into a folder of its name, and returns what was said."""

    def run(name: str, description: Description | None = None) -> list[str]:
        (known,) = [known for known in DESCRIPTIONS if known.name == name]
        said: list[str] = []
        package.download(description or as_uploaded(known), tmp_path / name, said.append)
        return said

    for name in ("PACS", "OfficeHome", "DomainNet", "FedISIC2019", "Camelyon17"):
        upload(hub, name)
    return run
