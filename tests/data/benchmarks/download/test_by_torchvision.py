from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import torchvision

import fedvlp.data
from fedvlp.data.benchmarks.download import download, obtain, read_source
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import free_bytes
from tests.helpers.family_trees import cifar, with_small_batches
from tests.helpers.form_trees import BY_NAME, KEPT, food101


def small_food():
    """Food-101 as if its small tree were what was published."""
    known = BY_NAME["Food101"]
    sizes = {"Food101": {"train": 12, "test": 3}}
    forms = tuple(replace(form, split_counts=sizes) for form in known.layouts[1:])
    return replace(
        known, class_names=tuple(KEPT["Food101"].classes), counts={}, domain_counts={"Food101": 15}, layouts=forms
    )


@pytest.fixture
def publisher(monkeypatch):
    """Stands for the publisher of Food-101; counts its downloads, and raises what it is given."""

    class Publisher:
        downloads = 0
        error: Exception | None = None

        def send(self, folder):
            self.downloads += 1
            food101(folder)
            (folder / "food-101.tar.gz").write_bytes(b"the archive")
            if self.error is not None:
                raise self.error

    publisher = Publisher()
    monkeypatch.setattr(torchvision.datasets.Food101, "_download", lambda data: publisher.send(Path(data.root)))
    return publisher


def test_terms_and_size_are_said_first_and_it_is_done_once(tmp_path, publisher):
    said = []
    root = tmp_path / "food"
    download(small_food(), root, said.append)
    assert said[0].startswith(
        f"Food101 by torchvision {torchvision.__version__} (Food101), from the Computer Vision Lab"
    )
    assert said[1] == "terms: images of Foodspotting's users; beyond scientific fair use their consent is needed"
    assert said[2].startswith(f"about 5.0 GB, to {root}: needs 10.0 GB of room, ")
    assert said[3:] == [f"15 images in {root}; their counts are those that were published"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["food"]
    assert sorted(path.name for path in root.iterdir()) == ["food-101", "source.json"]
    assert json.loads((root / "source.json").read_text())["images"] == {"Food101": 15}
    download(small_food(), root, said.append)
    assert publisher.downloads == 1
    assert said[4] == f"Food101 is in {root} already: torchvision.datasets.Food101 at {torchvision.__version__}"


def test_a_result_names_where_its_images_came_from(tmp_path, publisher, monkeypatch):
    monkeypatch.setattr(fedvlp.data.Food101, "description", small_food())
    data = fedvlp.data.Food101(root=str(tmp_path / "food"), download=True, cache_dir=None)
    assert data.describe()["source"] == read_source(tmp_path / "food")
    assert data.official.title == "train/test"
    obtain(small_food(), tmp_path / "food")
    assert publisher.downloads == 1


def test_an_interrupted_download_begins_anew(tmp_path, publisher):
    root = tmp_path / "food"
    publisher.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        download(small_food(), root, lambda line: None)
    assert not root.exists()
    left = tmp_path / ".food.download" / "food-101" / "images" / "waffles"
    (left / "99.jpg").write_bytes(b"half of an image")
    publisher.error = None
    download(small_food(), root, lambda line: None)
    assert publisher.downloads == 2
    assert len(list((root / "food-101" / "images" / "waffles").iterdir())) == 5


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            RuntimeError("File not found or corrupted."),
            r"could not download Food101 \(File not found or corrupted.\). Check",
        ),
        (OSError(28, "No space left on device"), "became full. Make room; the same command begins again"),
        (tarfile.ReadError(""), r"could not download Food101 \(ReadError\)"),
    ],
    ids=["network", "disk", "archive"],
)
def test_what_goes_wrong_leaves_nothing(tmp_path, publisher, error, said):
    publisher.error = error
    with pytest.raises(UserError, match=said):
        download(small_food(), tmp_path / "food", lambda line: None)
    assert list(tmp_path.iterdir()) == []


def test_other_images_than_were_published_stay_in_the_hidden_folder(tmp_path, publisher):
    known = replace(small_food(), domain_counts={"Food101": 16})
    with pytest.raises(
        UserError, match=r"torchvision's Food101 downloads is not Food101 as it was published: Food101: 15"
    ):
        download(known, tmp_path / "food", lambda line: None)
    assert [path.name for path in tmp_path.iterdir()] == [".food.download"]


def test_neither_other_files_nor_a_small_disk_are_written_to(tmp_path, publisher, monkeypatch):
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(UserError, match="holds other files"):
        download(small_food(), tmp_path, lambda line: None)
    needed = replace(small_food(), domain_counts={"Food101": free_bytes(tmp_path)})
    with pytest.raises(UserError, match="too little room"):
        download(needed, tmp_path / "food", lambda line: None)
    assert not publisher.downloads


def test_cifar_is_downloaded_without_being_unpickled(tmp_path, monkeypatch):
    asked = []

    def fetch(url, folder, filename, md5):
        asked.append((url, filename, md5))
        cifar("CIFAR100")(Path(folder))
        (Path(folder) / filename).write_bytes(b"the archive")

    theirs = torchvision.datasets.CIFAR100
    monkeypatch.setattr("torchvision.datasets.utils.download_and_extract_archive", fetch)
    monkeypatch.setattr(theirs, "__init__", lambda *_: pytest.fail("torchvision unpickles what it opens"))
    known = with_small_batches("CIFAR100")
    classes = tuple(known.class_names[index] for index in (0, 3, 99))
    form = replace(known.layouts[0], split_counts={"CIFAR100": {"train": 15, "test": 15}})
    known = replace(
        known, counts={}, domain_counts={"CIFAR100": 30}, layouts=(form,), domain_classes={"CIFAR100": classes}
    )
    download(known, tmp_path / "cifar", lambda line: None)
    assert asked == [(theirs.url, theirs.filename, theirs.tgz_md5)]
    assert sorted(path.name for path in (tmp_path / "cifar").iterdir()) == ["cifar-100-python", "source.json"]
