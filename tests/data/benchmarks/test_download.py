"""Downloads from a fake hub, and with torchvision from a fake publisher."""

import io
import json
import shutil
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torchvision

import fedvlp
from fedvlp.catalog.description import DATA_SETS
from fedvlp.data.benchmarks import download as downloads
from fedvlp.data.benchmarks.download import write_images
from fedvlp.data.domain_folders import DomainFolders
from fedvlp.utils.errors import UserError
from tests.helpers.benchmark_trees import picture
from tests.helpers.hub import REVISION, Hub, Repository
from tests.helpers.hub_data_sets import COUNTS, FORMS, as_uploaded, parquet, upload
from tests.helpers.single_domain_trees import BY_NAME, FILE_LAYOUTS, food101

PACS = DATA_SETS["PACS"]
PACS_FILE = "data/train-00000-of-00001.parquet"
CAMELYON_17 = DATA_SETS["Camelyon17"]
FED_ISIC_2019 = DATA_SETS["FedISIC2019"]


@pytest.fixture
def hub(monkeypatch):
    return Hub(monkeypatch)


@pytest.fixture
def download(hub, tmp_path):
    """Download a data set into a folder of its name; return the lines for the user."""

    def run(name, description=None):
        lines = []
        downloads.download(description or as_uploaded(DATA_SETS[name]), tmp_path / name, lines.append)
        return lines

    for name in FORMS:
        upload(hub, name)
    return run


def pacs_repository(hub):
    return hub.repositories["flwrlabs/pacs"]


def images_in(root):
    """List the images of each domain's folder; the folder of lists has none."""
    return {domain: files for domain, files in DomainFolders(str(root)).scan().items() if files}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", FORMS)
def test_each_data_set_becomes_folders_and_a_second_call_does_nothing(download, hub, tmp_path, name):
    lines = download(name)
    source = DATA_SETS[name].download_source
    revision = source.revision or REVISION
    assert lines[0] == f"{name} from {hub.endpoint}/datasets/{source.repository} at {revision}"
    assert lines[1] == f"terms: {DATA_SETS[name].licence}; licence of the copy: unknown"
    assert lines[2].startswith(f"files: {len(FORMS[name]())}, ")
    assert " kB of disk space" in lines[2]
    assert lines[3] == f"{sum(COUNTS[name])} images in {tmp_path / name}; their counts match the published ones"
    assert names(tmp_path) == [name]
    counts = dict(zip(DATA_SETS[name].domain_counts, COUNTS[name], strict=True))
    assert {domain: len(files) for domain, files in images_in(tmp_path / name).items()} == counts
    written = json.loads((tmp_path / name / "source.json").read_text(encoding="utf-8"))
    assert (written["repository"], written["revision"], written["images"]) == (source.repository, revision, counts)
    requests = len(hub.requests)
    assert download(name) == [f"{name} is in {tmp_path / name} already: {source.repository} at {revision}"]
    assert len(hub.requests) == requests


def test_names_come_from_the_file_and_bytes_stay_unchanged(download, tmp_path):
    """DomainNet's domains are numbers in the file, not in alphabetical order."""
    download("DomainNet")
    for number, domain in enumerate(["sketch", "clipart", "real", "painting", "quickdraw", "infograph"]):
        # 2 classes: rows 2 n and 2 n + 1 of each repetition of 12 rows are of domain n.
        for stem, repetitions in (("test-00000-of-00001", 1), ("train-00000-of-00001", 3)):
            for row in (2 * number + 12 * repetition for repetition in range(repetitions)):
                path = tmp_path / "DomainNet" / domain / "zebra" / f"{stem}_{row:06d}.png"
                assert path.read_bytes() == picture(row)


def test_the_official_split_is_kept(download, tmp_path, monkeypatch):
    download("FedISIC2019")
    monkeypatch.setattr(fedvlp.FedISIC2019, "description", as_uploaded(FED_ISIC_2019))
    data = fedvlp.FedISIC2019(root=str(tmp_path / "FedISIC2019"), cache_dir=None)
    assert data.protocol == "all domains seen, official test split; one client per domain; official train/test split"
    assert Counter(part.role for part in data.split_parts) == {"train": 6, "validation": 6, "test": 6}
    assert data.describe()["source"] == f"flwrlabs/fed-isic2019 at {REVISION}"


def test_files_that_were_written_are_not_downloaded_again(download, hub, tmp_path):
    contents = hub.repositories["flwrlabs/office-home"].files
    first, second = sorted(path for path in contents if "data" in path)
    hub.lost = second
    with pytest.raises(UserError, match=r"could not be downloaded .* The same command resumes where it stopped"):
        download("OfficeHome")
    assert not (tmp_path / "OfficeHome").exists()
    hub.lost = ""
    download("OfficeHome")
    assert hub.sent[first] == len(contents[first])
    assert hub.sent[second] > 0
    assert names(tmp_path) == ["OfficeHome"]


def test_other_counts_are_named_and_nothing_is_taken_for_the_data_set(download, hub, tmp_path):
    description = as_uploaded(PACS)
    counts = {**description.domain_counts, "photo": 13}
    for _ in range(2):  # the second time without a download
        with pytest.raises(UserError, match=r"differs from the published PACS: photo: 12 images, 13 published\. The"):
            download("PACS", replace(description, domain_counts=counts))
        assert names(tmp_path) == [".PACS.download"]
        assert hub.sent[PACS_FILE] == len(pacs_repository(hub).files[PACS_FILE])


def test_files_elsewhere_are_left_there(download, hub, tmp_path):
    pacs_repository(hub).files |= {"data/notes.txt": b"x", "data/more/train.parquet": b"x", "train.parquet": b"x"}
    assert download("PACS")[2].startswith("files: 1, ")
    assert set(hub.sent) == {PACS_FILE}
    assert names(tmp_path) == ["PACS"]


def test_a_hub_that_fails_or_is_not_reached_is_one_message(download, hub):
    hub.error = OSError("500 Server Error")
    message = r"flwrlabs/pacs could not .*500.*\. Check network .* accept the terms on that page and set HF_TOKEN"
    with pytest.raises(UserError, match=message):
        download("PACS")
    hub.error = None
    del hub.repositories["flwrlabs/pacs"]
    with pytest.raises(UserError, match=r"/datasets/flwrlabs/pacs could not .*Repository Not Found"):
        download("PACS")
    hub.add(Repository("flwrlabs/pacs", revision=str(PACS.download_source.revision)))
    with pytest.raises(UserError, match=r"Expected data/\*\.parquet in .* found none\. The copy was changed"):
        download("PACS")


@pytest.fixture
def pacs(hub, monkeypatch):
    """Make the data module of a small PACS on the fake hub."""
    monkeypatch.setattr(fedvlp.PACS, "description", as_uploaded(PACS))
    upload(hub, "PACS")
    return lambda root, **options: fedvlp.PACS(root=str(root), cache_dir=None, **options)


def test_a_missing_folder_names_the_command_that_gets_it(hub, pacs, tmp_path):
    command = rf"fedvlp data download pacs --root '{tmp_path}/my images' or --data\.download true\.$"
    with pytest.raises(UserError, match=command):
        pacs(tmp_path / "my images").prepare_data()
    assert not hub.requests


def test_a_data_module_downloads_once(hub, pacs, tmp_path, caplog):
    first = pacs(tmp_path / "images", download=True)
    assert first.describe()["source"].startswith("flwrlabs/pacs at 3941")
    assert [line.split()[0] for line in caplog.messages] == ["PACS", "terms:", "files:", "48"]
    requests = len(hub.requests)
    second = pacs(tmp_path / "images", download=True)
    assert second.describe() == first.describe()
    assert len(hub.requests) == requests
    assert len(caplog.messages) == 4


LABELS = {"label": ["dog", "giraffe"]}


@pytest.fixture
def unpack(tmp_path):
    """Write the images of a parquet file; return their folders domain/class."""

    def run(content, description=PACS):
        path = tmp_path / "x.parquet"
        path.write_bytes(content)
        write_images(path, tmp_path / "images", description.download_source, description)
        images = sorted((tmp_path / "images").rglob("*.*"), key=lambda image: image.name)
        return [image.parent.relative_to(tmp_path / "images").as_posix() for image in images]

    return run


@pytest.mark.parametrize(
    ("description", "rows", "columns", "places"),
    [
        (PACS, [("photo", 1), ("sketch", 0)], ("domain", LABELS), ["photo/giraffe", "sketch/dog"]),
        # Numbers that the publisher gave are names.
        (FED_ISIC_2019, [(4, 0), (0, 7)], ("center", {}), ["MSK/melanoma", "BCN/squamous_cell_carcinoma"]),
        (CAMELYON_17, [(3, 0)], ("center", {}), ["hospital_3/normal"]),
    ],
)
def test_names_of_domains_and_classes(unpack, description, rows, columns, places):
    assert unpack(parquet(rows, *columns), description) == places


@pytest.mark.parametrize(
    ("rows", "labels", "reason"),
    [
        ([("photo", 0)], {}, r"Expected a class of PACS \(dog, .*\) in x\.parquet; found '0'"),
        ([("watercolour", 0)], LABELS, r"domain of PACS \(art_painting, .* in x\.parquet; found 'watercolour'"),
    ],
)
def test_other_names_are_refused(unpack, rows, labels, reason):
    with pytest.raises(UserError, match=reason):
        unpack(parquet(rows, names=labels))


def test_other_files_are_refused(unpack):
    with pytest.raises(UserError, match=r"columns image, center, label in x\.parquet; it has image, domain, label"):
        unpack(parquet([("photo", 0)]), FED_ISIC_2019)
    for content in (None, b"text"):
        file = io.BytesIO()
        image = {"bytes": content, "path": "1.txt"}
        pq.write_table(pa.table({"image": [image], "domain": ["photo"], "label": ["dog"]}), file)
        with pytest.raises(UserError, match=r"Row 0 of x\.parquet has no known image type"):
            unpack(file.getvalue())


def test_extensions_follow_the_content(unpack, tmp_path):
    images = [
        {"bytes": picture(1), "path": "1.jpg"},
        {"bytes": b"\xff\xd8\xff\xe0", "path": None},
        {"bytes": b"P6 1 1 255 abc", "path": "a/b.PPM"},
        {"bytes": b"cut off", "path": "n02103406_4068-1.png"},
    ]
    file = io.BytesIO()
    pq.write_table(pa.table({"image": images, "domain": ["sketch"] * 4, "label": ["dog"] * 4}), file)
    unpack(file.getvalue())
    assert names(tmp_path / "images/sketch/dog") == [
        "n02103406_4068-1.png",  # a known bad image, recognised by its name
        "x_000000.png",
        "x_000001.jpg",
        "x_000002.ppm",
    ]


def small_food():
    """Food-101 as if its small tree had been published."""
    known = BY_NAME["Food101"]
    sizes = {"Food101": {"train": 12, "test": 3}}
    layouts = tuple(replace(layout, split_counts=sizes) for layout in known.layouts[1:])
    classes = tuple(FILE_LAYOUTS["Food101"].classes)
    return replace(known, class_names=classes, counts={}, domain_counts={"Food101": 15}, layouts=layouts)


@pytest.fixture
def publisher(monkeypatch):
    """A fake publisher of Food-101, which counts downloads and raises a given error."""

    class Publisher:
        downloads = 0
        error: BaseException | None = None

        def send(self, folder):
            self.downloads += 1
            food101(folder)
            (folder / "food-101.tar.gz").write_bytes(b"the archive")
            if self.error is not None:
                raise self.error

    publisher = Publisher()
    monkeypatch.setattr(torchvision.datasets.Food101, "_download", lambda data: publisher.send(Path(data.root)))
    return publisher


def test_torchvision_downloads_once_after_printing_terms_and_size(tmp_path, publisher):
    lines = []
    root = tmp_path / "food"
    downloads.download(small_food(), root, lines.append)
    assert lines[0].startswith(
        f"Food101 with torchvision {torchvision.__version__} (Food101), from the Computer Vision Lab"
    )
    assert lines[1] == "terms: images of Foodspotting's users; beyond scientific fair use their consent is needed"
    assert lines[2].startswith(f"about 5.0 GB, to {root}: needs 10.0 GB of disk space, ")
    assert lines[3:] == [f"15 images in {root}; their counts match the published ones"]
    assert names(tmp_path) == ["food"]
    assert names(root) == ["food-101", "source.json"]
    assert json.loads((root / "source.json").read_text())["images"] == {"Food101": 15}
    downloads.download(small_food(), root, lines.append)
    assert publisher.downloads == 1
    assert lines[4] == f"Food101 is in {root} already: torchvision.datasets.Food101 at {torchvision.__version__}"


def test_an_interrupted_download_by_torchvision_begins_again(tmp_path, publisher):
    root = tmp_path / "food"
    publisher.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        downloads.download(small_food(), root, print)
    assert not root.exists()
    left = tmp_path / ".food.download" / "food-101" / "images" / "waffles"
    (left / "99.jpg").write_bytes(b"half of an image")
    publisher.error = None
    downloads.download(small_food(), root, print)
    assert publisher.downloads == 2
    assert len(names(root / "food-101" / "images" / "waffles")) == 5


def test_a_failed_download_by_torchvision_leaves_nothing(tmp_path, publisher):
    for error, reason in {
        OSError(28, "No space left on device"): "No space left on device",
        tarfile.ReadError(""): "ReadError",
    }.items():
        publisher.error = error
        with pytest.raises(UserError, match=rf"could not download Food101 \(.*{reason}\). Check network and disk"):
            downloads.download(small_food(), tmp_path / "food", print)
        assert list(tmp_path.iterdir()) == []


def test_too_little_space_and_a_missing_extra_are_reported_first(download, hub, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 150_000))
    with pytest.raises(UserError, match=r"too little space: 2\d\d kB are needed, 150 kB are free\. Free some space"):
        download("PACS")
    assert not hub.sent
    assert names(tmp_path) == []
    requests = len(hub.requests)
    monkeypatch.setattr(downloads, "find_spec", lambda package: None if package == "pyarrow" else package)
    with pytest.raises(UserError, match=r'Run: pip install "fedvlp\[download\]"$'):
        download("PACS")
    assert len(hub.requests) == requests
