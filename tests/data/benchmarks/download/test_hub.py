from __future__ import annotations

import pytest
from huggingface_hub import constants

from fedvlp.data.benchmarks.hub import fetch, find_snapshot
from fedvlp.data.catalog import DATA_SETS
from fedvlp.utils.errors import UserError
from tests.helpers.hub import Hub, Repository, use_hub
from tests.helpers.hub_data_sets import upload

PACS = DATA_SETS["PACS"].hub


def test_a_snapshot_has_the_wanted_files_at_one_commit(hub):
    upload(hub, "OfficeHome")
    repository = hub.repositories["datasets", "flwrlabs/office-home"]
    repository.files |= {"data/notes.txt": b"x", "data/more/train.parquet": b"x", "train.parquet": b"x"}
    snapshot = find_snapshot(DATA_SETS["OfficeHome"].hub)
    assert [file.path for file in snapshot.files] == [f"data/train-0000{part}-of-00002.parquet" for part in range(2)]
    assert snapshot.revision == DATA_SETS["OfficeHome"].hub.revision
    assert snapshot.card["license"] == "unknown"
    assert snapshot.size == sum(len(repository.files[file.path]) for file in snapshot.files)


def test_a_gated_repository_needs_a_token(hub, tmp_path, monkeypatch):
    upload(hub, "PACS").gated = True
    snapshot = find_snapshot(PACS)
    with pytest.raises(UserError, match=r"flwrlabs/pacs is gated\. Accept its terms on that page, then set HF_TOKEN"):
        fetch(snapshot, snapshot.files[0], tmp_path / "file", "")
    monkeypatch.setenv("HF_TOKEN", "hf_stand_in")
    fetch(snapshot, snapshot.files[0], tmp_path / "file", "")
    assert (tmp_path / "file").stat().st_size == snapshot.size


def test_what_is_not_there_is_one_message(hub):
    with pytest.raises(UserError, match=r"/datasets/flwrlabs/pacs does not exist, or not for you\. .* set HF_TOKEN"):
        find_snapshot(PACS)
    hub.add(Repository("flwrlabs/pacs"))
    with pytest.raises(UserError, match=r"has no revision 3941\w{36} any more"):
        find_snapshot(PACS)
    hub.add(Repository("flwrlabs/pacs", revision=str(PACS.revision)))
    with pytest.raises(UserError, match=r"Expected data/\*\.parquet in .* there is none\. The copy was changed"):
        find_snapshot(PACS)


def test_a_hub_that_fails_is_one_message(hub, monkeypatch):
    upload(hub, "PACS")
    hub.status = 500
    with pytest.raises(UserError, match=r"flwrlabs/pacs answered 500\. .* else call the same command again later"):
        find_snapshot(PACS)


def test_no_network_is_one_message(monkeypatch):
    hub = Hub()
    with hub.serving():
        use_hub(hub, monkeypatch)
    with pytest.raises(UserError, match=rf"{hub.address} could not be reached \(.*refused.*\)\. Check the network"):
        find_snapshot(PACS)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set, so nothing is downloaded"):
        find_snapshot(PACS)


def test_a_mirror_that_sends_no_parts_is_refused(hub, tmp_path, monkeypatch):
    upload(hub, "PACS")
    hub.sends_parts = False
    monkeypatch.setattr("fedvlp.data.benchmarks.hub.BLOCK", 1000)
    snapshot = find_snapshot(PACS)
    with pytest.raises(UserError, match=r"Expected 1,000 bytes .* That hub sends no parts of files"):
        fetch(snapshot, snapshot.files[0], tmp_path / "file", "")
