from __future__ import annotations

import pickle
import tarfile

import numpy as np
import pytest
import torchvision.datasets

import fedvlp.data
from fedvlp.data.benchmarks.comparison import compare
from fedvlp.data.benchmarks.manifest import read_manifest
from fedvlp.data.catalog import DATA_SETS
from fedvlp.utils.errors import UserError
from tests.helpers.family_trees import cifar, with_small_batches

CIFAR_10 = DATA_SETS["CIFAR10"]
CIFAR_100 = DATA_SETS["CIFAR100"]
CIFAR = {"CIFAR10": CIFAR_10, "CIFAR100": CIFAR_100}


@pytest.mark.parametrize("name", CIFAR)
def test_digests_and_names_of_files_are_torchvisions(name):
    theirs = getattr(torchvision.datasets, name)
    (part,) = CIFAR[name].layouts[0].parts
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
    found = read_manifest(tmp_path, with_small_batches(name))
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
    findings = compare(read_manifest(cifar("CIFAR10")(tmp_path), known), known)
    assert len(findings.problems) == 1
    assert "75 train images, 50,000 published; 15 test images, 10,000 published" in findings.problems[0]
    found = read_manifest(tmp_path, known)
    found.pixels["CIFAR10"][20] = found.pixels["CIFAR10"][0]
    (note,) = compare(found, known).notes
    assert note.startswith("1 images are there twice in one domain")


@pytest.mark.parametrize("name", CIFAR)
def test_only_published_files_are_read(tmp_path, name):
    cifar(name)(tmp_path)
    with pytest.raises(UserError, match=r"with the published MD5 .* It is damaged or was changed"):
        getattr(fedvlp.data, name)(root=str(tmp_path), cache_dir=None).prepare_data()
    (part,) = CIFAR[name].layouts[0].parts
    (tmp_path / part.folder / part.names).unlink()
    with pytest.raises(UserError, match=rf"Expected the file .*/{part.names}; it is missing"):
        read_manifest(tmp_path, with_small_batches(name))


def test_a_damaged_archive(tmp_path):
    known = with_small_batches("CIFAR10")
    path = cifar("CIFAR10", packed=True)(tmp_path) / "cifar-10-python.tar.gz"
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"no archive"):
        path.write_bytes(damaged)
        with pytest.raises(
            UserError, match=r"cifar-10-python.tar.gz can't be read \(.*\). It is damaged: get it again"
        ):
            read_manifest(tmp_path, known)
    with tarfile.open(path, "w:gz"):
        pass
    with pytest.raises(UserError, match=r"/batches.meta; it is missing. Extract the archive cifar-10-python"):
        read_manifest(tmp_path, known)


def test_a_pickle_of_another_digest_runs_nothing(tmp_path):
    class Hostile:
        def __reduce__(self):
            return pytest.fail, ("something of the pickle was run",)

    path = cifar("CIFAR10")(tmp_path) / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Hostile()}))
    with pytest.raises(UserError, match="with the published MD5"):
        read_manifest(tmp_path, with_small_batches("CIFAR10"))
