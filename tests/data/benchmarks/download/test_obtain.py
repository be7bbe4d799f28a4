from __future__ import annotations

import pytest

import fedvlp.data
from fedvlp.data.catalog import DATA_SETS
from fedvlp.utils.errors import UserError
from tests.helpers.benchmark_trees import plain_tree
from tests.helpers.hub_data_sets import as_uploaded, upload


@pytest.fixture
def pacs(hub, monkeypatch):
    """Returns a function that makes the data module of a small PACS, which is on the hub."""
    monkeypatch.setattr(fedvlp.data.PACS, "description", as_uploaded(DATA_SETS["PACS"]))
    upload(hub, "PACS")
    return lambda root, **options: fedvlp.data.PACS(root=str(root), cache_dir=None, **options)


def test_a_missing_folder_names_the_command_that_gets_it(hub, pacs, tmp_path):
    told = rf"fedvlp data download pacs --root '{tmp_path}/my images', or --data\.download true\.$"
    with pytest.raises(UserError, match=told):
        pacs(tmp_path / "my images").prepare_data()
    assert not hub.requests


def test_it_is_downloaded_once(hub, pacs, tmp_path, caplog):
    first = pacs(tmp_path / "images", download=True)
    assert first.describe()["source"].startswith("flwrlabs/pacs at 3941")
    assert [line.split()[0] for line in caplog.messages] == ["PACS", "terms:", "1", "48"]
    requests = len(hub.requests)
    second = pacs(tmp_path / "images", download=True)
    assert second.describe() == first.describe()
    assert len(hub.requests) == requests
    assert len(caplog.messages) == 4


def test_images_of_ones_own_are_taken_as_they_are(hub, pacs, tmp_path):
    data = pacs(plain_tree("PACS", inside="kfold")(tmp_path), download=True)
    assert data.domains == list(DATA_SETS["PACS"].domains)
    assert "source" not in data.describe()
    assert not hub.requests


def test_a_data_set_without_a_source_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"VLCS can't be downloaded by a command; it can be had from the DomainBed"):
        fedvlp.data.VLCS(root=str(tmp_path), download=True).prepare_data()
