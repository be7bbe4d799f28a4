from __future__ import annotations

import errno
import json
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import fedvlp.data
from fedvlp.data.benchmarks import download as downloader
from fedvlp.data.benchmarks import hub as hub_module
from fedvlp.data.benchmarks.download import Staging, read_source
from fedvlp.data.catalog import DATA_SETS
from fedvlp.data.files.folders import scan
from fedvlp.utils.errors import UserError
from tests.helpers.benchmark_trees import picture
from tests.helpers.hub import REVISION
from tests.helpers.hub_data_sets import COUNTS, FORMS, as_uploaded, domain_net, parquet

PACS_FILE = "data/train-00000-of-00001.parquet"


def pacs_repository(hub):
    return hub.repositories["datasets", "flwrlabs/pacs"]


def domains(root):
    """The images of each domain's folder; the folder of lists holds none."""
    return {domain: files for domain, files in scan(root).items() if files}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", FORMS)
def test_each_data_set_becomes_folders_and_a_second_call_does_nothing(download, hub, tmp_path, name):
    said = download(name)
    source = DATA_SETS[name].hub
    revision = source.revision or REVISION
    assert said[0] == f"{name} from {hub.address}/datasets/{source.repository} at {revision}"
    assert said[1] == f"terms: {source.terms}; the copy's card says: unknown"
    assert f"{len(FORMS[name]())} file" in said[2]
    assert " kB of room" in said[2]
    assert said[3] == f"{sum(COUNTS[name])} images in {tmp_path / name}; their counts are those that were published"
    assert names(tmp_path) == [name]
    description = DATA_SETS[name]
    counts = dict(zip(description.domain_counts, COUNTS[name], strict=True))
    assert {domain: len(files) for domain, files in domains(tmp_path / name).items()} == counts
    told = json.loads((tmp_path / name / "source.json").read_text(encoding="utf-8"))
    assert (told["repository"], told["revision"], told["images"]) == (source.repository, revision, counts)
    assert sum(file["rows"] for file in told["files"]) == sum(COUNTS[name])
    requests = len(hub.requests)
    assert download(name) == [f"{name} is in {tmp_path / name} already: {source.repository} at {revision}"]
    assert len(hub.requests) == requests


def test_names_come_from_the_file_and_bytes_stay_as_they_are(download, tmp_path):
    """DomainNet's domains are numbers there, in an order that is not the alphabet's."""
    download("DomainNet")
    numbers = ["sketch", "clipart", "real", "painting", "quickdraw", "infograph"]
    for number, domain in enumerate(numbers):
        # 2 classes: rows 2 n and 2 n + 1 of each repetition of 12 rows are of domain n.
        for stem, repetitions in (("test-00000-of-00001", 1), ("train-00000-of-00001", 3)):
            for row in (2 * number + 12 * repetition for repetition in range(repetitions)):
                path = tmp_path / "DomainNet" / domain / "zebra" / f"{stem}_{row:06d}.png"
                assert path.read_bytes() == picture(row)


def test_the_official_split_is_kept(download, tmp_path, monkeypatch):
    download("FedISIC2019")
    monkeypatch.setattr(fedvlp.data.FedISIC2019, "description", as_uploaded(DATA_SETS["FedISIC2019"]))
    data = fedvlp.data.FedISIC2019(root=str(tmp_path / "FedISIC2019"), cache_dir=None)
    assert data.protocol == "all domains seen, official test split; one client a domain; official train/test split"
    roles = Counter(part.role for part in data.split_parts)
    assert roles == {"train": 6, "validation": 6, "test": 6}
    assert data.describe()["source"] == f"flwrlabs/fed-isic2019 at {REVISION}"


def test_a_download_goes_on_where_it_was_interrupted(download, hub, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_module, "BLOCK", 1000)
    size = len(pacs_repository(hub).files[PACS_FILE])
    hub.bytes_left = 2500
    with pytest.raises(UserError, match=r"could not be reached .* the same command resumes where it stopped"):
        download("PACS")
    assert not (tmp_path / "PACS").exists()
    assert hub.sent[PACS_FILE] == 2500
    hub.bytes_left = None
    download("PACS")
    assert size > 5000
    assert hub.sent[PACS_FILE] == size + 500  # half of the third block came in vain
    assert names(tmp_path) == ["PACS"]


def test_files_that_were_written_are_not_downloaded_again(download, hub, tmp_path, monkeypatch):
    first, second = sorted(
        path for path in hub.repositories["datasets", "flwrlabs/office-home"].files if "data" in path
    )
    monkeypatch.setattr(hub_module, "BLOCK", 1000)
    size = len(hub.repositories["datasets", "flwrlabs/office-home"].files[first])
    hub.bytes_left = size + 1500
    with pytest.raises(UserError):
        download("OfficeHome")
    assert names(tmp_path / ".OfficeHome.download/files") == [f"{Path(second).name}.part"]
    hub.bytes_left = None
    download("OfficeHome")
    assert (hub.sent[first], hub.sent[second]) == (size, size + 500)


def test_another_commit_begins_anew(download, hub, tmp_path, monkeypatch):
    repository = hub.repositories["datasets", "flwrlabs/fed-isic2019"]
    monkeypatch.setattr(hub_module, "BLOCK", 1000)
    hub.bytes_left = len(repository.files["data/test-00000-of-00001.parquet"]) + 1500
    with pytest.raises(UserError):
        download("FedISIC2019")
    hub.bytes_left = None
    repository.revision = "7" * 40
    repository.files = {f"data/{path}": content for path, content in repository.files.items()}
    repository.files = {
        path.replace("data/data", "data").replace("00000", "00009"): repository.files[path] for path in repository.files
    }
    download("FedISIC2019")
    assert read_source(tmp_path / "FedISIC2019") == f"flwrlabs/fed-isic2019 at {'7' * 40}"
    assert not list((tmp_path / "FedISIC2019").rglob("*-00000-*"))


def test_what_is_stopped_while_it_writes_is_not_taken_for_whole(download, hub, tmp_path, monkeypatch):
    write = Path.write_bytes
    written = []

    def stops(path, content):
        if len(written) == 20:
            raise KeyboardInterrupt
        written.append(path)
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", stops)
        with pytest.raises(KeyboardInterrupt):
            download("PACS")
    assert names(tmp_path) == [".PACS.download"]
    requests = hub.sent[PACS_FILE]
    download("PACS")
    assert hub.sent[PACS_FILE] == requests
    assert sum(map(len, domains(tmp_path / "PACS").values())) == 48


def test_a_file_of_another_digest_is_removed(download, hub, tmp_path):
    repository = pacs_repository(hub)
    repository.sent_instead[PACS_FILE] = bytes(len(repository.files[PACS_FILE]))
    with pytest.raises(UserError, match=r"with the SHA-256 [0-9a-f]{64}; what came has [0-9a-f]{64}\. It was removed"):
        download("PACS")
    assert names(tmp_path / ".PACS.download/files") == []
    repository.sent_instead.clear()
    download("PACS")
    assert names(tmp_path) == ["PACS"]


def test_other_counts_are_named_and_nothing_is_taken_for_the_data_set(download, hub, tmp_path):
    description = as_uploaded(DATA_SETS["PACS"])
    counts = {**description.domain_counts, "photo": 13}
    for _ in range(2):  # the second time without a download
        with pytest.raises(UserError, match=r"is not PACS as it was published: photo: 12 images, 13 published\. What"):
            download("PACS", replace(description, domain_counts=counts))
        assert names(tmp_path) == [".PACS.download"]
        assert hub.sent[PACS_FILE] == len(pacs_repository(hub).files[PACS_FILE])


def test_too_little_room_is_said_before_anything_is_downloaded(download, hub, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 150_000))
    with pytest.raises(UserError, match=r"too little room: 21\d kB are needed, 150 kB are free\. Make room"):
        download("PACS")
    assert not hub.sent
    assert names(tmp_path) == []


@pytest.mark.parametrize("full", ["write_bytes", "open"])
def test_a_disk_that_becomes_full_is_said_and_the_download_goes_on(download, tmp_path, monkeypatch, full):
    original = getattr(Path, full)

    def refuses(path, *rest, **options):
        if path.suffix in (".png", ".part"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return original(path, *rest, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, full, refuses)
        with pytest.raises(
            UserError, match=r"is full: 2\d\d kB are still needed, .* free\. Make room; the same command"
        ):
            download("PACS")
    download("PACS")
    assert sum(map(len, domains(tmp_path / "PACS").values())) == 48


def test_two_at_once_download_once(download, hub, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        both = [call.result() for call in [pool.submit(download, "PACS") for _ in range(2)]]
    assert sorted(map(len, both)) == [1, 4]
    assert hub.sent[PACS_FILE] == len(pacs_repository(hub).files[PACS_FILE])
    assert names(tmp_path) == ["PACS"]


def test_other_files_are_not_overwritten(download, hub, tmp_path):
    (tmp_path / "PACS").mkdir()
    (tmp_path / "PACS/notes.txt").touch()
    with pytest.raises(UserError, match="holds other files"):
        download("PACS")
    assert not hub.requests
    with pytest.raises(UserError, match=r"name of a folder to make for PACS; got '\.'"):
        downloader.download(DATA_SETS["PACS"], Path(), print)
    (tmp_path / "PACS/notes.txt").unlink()
    download("PACS")


def test_a_missing_extra_is_one_line(download, hub, monkeypatch):
    monkeypatch.setattr(downloader, "find_spec", lambda package: None if package == "pyarrow" else package)
    with pytest.raises(UserError, match=r'Run: pip install "fedvlp\[download\]"$'):
        download("PACS")
    assert not hub.requests


def test_room_is_counted_without_what_is_there(download, hub, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_module, "BLOCK", 1000)
    hub.bytes_left = 3000
    with pytest.raises(UserError):
        download("PACS")
    snapshot = hub_module.find_snapshot(DATA_SETS["PACS"].hub)
    begun = Staging.beside(tmp_path / "PACS", snapshot)
    size = snapshot.size
    assert begun.needed(48) == 2 * size - 3000 + 48 * 4096
    begun.rows = {PACS_FILE: 48}
    assert begun.needed(48) == 0


def test_numbers_without_names_are_not_guessed(download, hub):
    repository = hub.repositories["datasets", "wltjr1007/DomainNet"]
    labels = {"label": ["zebra", "The_Eiffel_Tower"]}
    rows = [(number, 0) for number in range(6)]
    repository.files = {f"data/{stem}.parquet": parquet(rows, names=labels) for stem in domain_net()}
    with pytest.raises(
        UserError, match=r"has numbers, such as 0, and neither the file nor .* Their order is not guessed"
    ):
        download("DomainNet")
    order = ["sketch", "clipart", "real", "painting", "quickdraw", "infograph"]
    named = {"class_label": {"names": {str(number): name for number, name in enumerate(order)}}}
    repository.card = {
        "dataset_info": {"features": [{"name": "domain", "dtype": named}, {"name": "label", "dtype": "int64"}]}
    }
    with pytest.raises(UserError, match="is not DomainNet as it was published: clipart: 2 images, 8 published"):
        download("DomainNet")
