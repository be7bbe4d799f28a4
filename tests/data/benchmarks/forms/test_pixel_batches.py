from __future__ import annotations

import pickle
import tarfile

import numpy as np
import pytest
import torchvision.datasets

import fedvlp.data
from fedvlp.data.benchmarks.comparison import compare
from fedvlp.data.benchmarks.forms.pickled_arrays import read_pickled
from fedvlp.data.benchmarks.on_disk import read_on_disk
from fedvlp.data.catalog.small_images import CIFAR_10, CIFAR_100
from fedvlp.utils.errors import UserError
from tests.helpers.family_trees import cifar, with_small_batches
from tests.helpers.python2_pickle import array, batch_pickle, dictionary, number, sequence, text

CIFAR = {"CIFAR10": CIFAR_10, "CIFAR100": CIFAR_100}


@pytest.mark.parametrize("name", CIFAR)
def test_digests_and_names_of_files_are_torchvisions(name):
    theirs = getattr(torchvision.datasets, name)
    (part,) = CIFAR[name].forms[0].parts
    assert dict(theirs.train_list + theirs.test_list) | {part.names: theirs.meta["md5"]} == part.md5
    assert (part.folder, part.archive, part.names, part.names_key) == (
        theirs.base_folder,
        theirs.filename,
        theirs.meta["filename"],
        theirs.meta["key"],
    )
    assert [file for file, role in part.files.items() if role == "test"] == [file for file, _ in theirs.test_list]


@pytest.mark.parametrize("name", CIFAR)
def test_images_and_labels_are_those_that_torchvision_reads(tmp_path, monkeypatch, name):
    cifar(name)(tmp_path)
    theirs = getattr(torchvision.datasets, name)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    found = read_on_disk(tmp_path, with_small_batches(name))
    ours = dict(zip([image.name.rsplit("/")[-1] for image in found.files[name]], found.pixels[name], strict=True))
    classes = {image.name.rsplit("/")[-1]: image.class_name for image in found.files[name]}
    for is_train in (True, False):
        expected = theirs(str(tmp_path), train=is_train)
        files = [file for file, _ in (theirs.train_list if is_train else theirs.test_list)]
        rows = len(expected) // len(files)
        names = [f"{file}_{row:05d}" for file in files for row in range(rows)]
        np.testing.assert_array_equal([ours[each] for each in names], expected.data)
        assert [classes[each] for each in names] == [expected.classes[label] for label in expected.targets]


def test_it_is_checked_for_copies_and_counts(tmp_path):
    known = with_small_batches("CIFAR10")
    findings = compare(read_on_disk(cifar("CIFAR10")(tmp_path), known), known)
    assert len(findings.problems) == 1
    assert "75 train images, 50,000 published; 15 test images, 10,000 published" in findings.problems[0]
    found = read_on_disk(tmp_path, known)
    found.pixels["CIFAR10"][20] = found.pixels["CIFAR10"][0]
    (note,) = compare(found, known).notes
    assert note.startswith("1 images are there twice in one domain")


@pytest.mark.parametrize("name", CIFAR)
def test_only_published_files_are_read(tmp_path, name):
    cifar(name)(tmp_path)
    with pytest.raises(UserError, match=r"with the published MD5 .* It is damaged or was changed"):
        getattr(fedvlp.data, name)(root=str(tmp_path), cache_dir=None).prepare_data()
    (part,) = CIFAR[name].forms[0].parts
    (tmp_path / part.folder / part.names).unlink()
    with pytest.raises(UserError, match=rf"Expected the file .*{part.names}; it is missing"):
        read_on_disk(tmp_path, with_small_batches(name))


def test_a_damaged_archive(tmp_path):
    known = with_small_batches("CIFAR10")
    path = cifar("CIFAR10", packed=True)(tmp_path) / "cifar-10-python.tar.gz"
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"no archive"):
        path.write_bytes(damaged)
        with pytest.raises(
            UserError, match=r"cifar-10-python.tar.gz can't be read \(.*\). It is damaged: get it again"
        ):
            read_on_disk(tmp_path, known)
    with tarfile.open(path, "w:gz"):
        pass
    with pytest.raises(UserError, match=r"Expected the file .*cifar-10-python.tar.gz/batches.meta; it is missing"):
        read_on_disk(tmp_path, known)


class Hostile:
    """Would fail the test if it were unpickled as Python does it."""

    def __reduce__(self):
        return pytest.fail, ("something of the pickle was run",)


def test_a_pickle_that_names_anything_else_runs_nothing():
    for hostile in (pickle.dumps({b"data": Hostile()}), b"\x80\x02cos\nsystem\nU\x04true\x85R."):
        with pytest.raises(UserError, match="it names "):
            read_pickled(hostile, "data_batch_1")
    # numpy's own code would take this for an array of pointers.
    objects = array(np.zeros((1, 3072), np.uint8)).replace(text(b"u1"), text(b"O8"))
    assert read_pickled(dictionary({b"data": objects}), "x")[b"data"].bytes_of(3072) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x80\x02}", "can't be read as arrays"),
        (b"\x80\x02]q\x00.", "holds list"),
        (dictionary({b"labels": sequence([], pickle.APPENDS)}), "Expected rows of 3,072 bytes"),
        (
            dictionary({b"labels": number(1), b"data": array(np.zeros((2, 3), np.uint8))}),
            "Expected rows of 3,072 bytes",
        ),
        (batch_pickle(np.zeros((2, 3072), np.uint8), [1], "labels"), "Expected a label for each of the 2 images"),
        (batch_pickle(np.zeros((2, 3072), np.uint8), [1, 10], "labels"), "Expected labels from 0 to 9"),
    ],
    ids=["cut", "list", "no data", "width", "labels", "label"],
)
def test_files_that_hold_something_else(tmp_path, monkeypatch, content, said):
    monkeypatch.setattr("fedvlp.data.benchmarks.forms.pixel_batches._check_digest", lambda *_: None)
    folder = cifar("CIFAR10")(tmp_path) / "cifar-10-batches-py"
    (folder / "data_batch_1").write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_on_disk(tmp_path, CIFAR_10)
